"""Fine-tuning with the Trainer; the model is made from a config, so nothing is downloaded."""
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class DataArguments:
    examples: int = field(default=640, metadata={"help": "Number of training examples"})
    max_length: int = field(default=16)


@dataclass
class MyTrainingArguments(TrainingArguments):
    output_dir: str = "output"
    per_device_train_batch_size: int = 16
    num_train_epochs: float = 3.0
    report_to: str = "none"
    save_strategy: str = "no"
    logging_steps: int = 20
    use_cpu: bool = True


class Pairs(Dataset):
    def __init__(self, n, length):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, 100, (n, length), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids > 50).sum() > len(ids) // 2}


def main():
    data_args, training_args = HfArgumentParser((DataArguments, MyTrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=64, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Pairs(data_args.examples, data_args.max_length),
        data_collator=lambda rows: {k: torch.stack([torch.as_tensor(r[k]).long() for r in rows]) for k in rows[0]},
    )
    print(trainer.train().metrics)


if __name__ == "__main__":
    main()
