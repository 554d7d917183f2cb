"""The Trainer of transformers, with DeepSpeed by its own option."""

import deepspeed
import torch
from record import finish
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    """A regression that returns its loss."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


# An extension in C++ that is compiled first, and that gloo does not need.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.manual_seed(6)
rows = torch.randn(192, 16)
data = [{"x": row, "labels": row.sum().reshape(1)} for row in rows]
options = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    ddp_backend="gloo",
    deepspeed={
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
    },
    per_device_train_batch_size=8,
    num_train_epochs=2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    seed=3,
)
model = Model()
trainer = Trainer(model=model, args=options, train_dataset=data)
trainer.train()
finish(model, trainer.state.global_step, trainer.state.global_step * 8)
