"""Copy task with padded targets: the loss is a mean over the tokens that are not padding."""
import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def collate(batch):
    width = max(len(s) for s in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), -100)
    for row, s in enumerate(batch):
        ids[row, : len(s)] = torch.tensor(s)
        labels[row, : len(s)] = torch.tensor(s[1:] + [1])
    return {"input_ids": ids, "labels": labels}


class TinyLM(nn.Module):
    def __init__(self, vocab=80, dim=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.rnn(self.tok(input_ids))[0])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--train_batch_size", type=int, default=16)
    ap.add_argument("--num_epochs", type=int, default=4)
    ap.add_argument("--learning_rate", type=float, default=1e-3)
    cfg = ap.parse_args()
    torch.manual_seed(1)
    rng = random.Random(1)
    texts = [[rng.randrange(2, 80) for _ in range(rng.choice([3, 5, 8, 30]))] for _ in range(800)]
    loader = DataLoader(texts, batch_size=cfg.train_batch_size, shuffle=True, collate_fn=collate)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    for epoch in range(cfg.num_epochs):
        for batch in loader:
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"{epoch=} {loss.item()=:.4f}")


if __name__ == "__main__":
    main()
