"""Text-like classification with a dataset that returns dictionaries."""
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 32
EPOCHS = 5


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class ReviewDataset(Dataset):
    def __init__(self, size, length=24, vocab=500):
        rng = np.random.default_rng(7)
        self.ids = rng.integers(1, vocab, size=(size, length))
        self.labels = (self.ids % 2).sum(axis=1) > length // 2

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": torch.as_tensor(self.ids[i], dtype=torch.long),
            "attention_mask": torch.ones(self.ids.shape[1], dtype=torch.long),
            "labels": torch.tensor(int(self.labels[i])),
        }


class BagClassifier(nn.Module):
    def __init__(self, vocab=500, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.head = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, 2))

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1).float()
        pooled = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.head(pooled)
        out = {"logits": logits}
        if labels is not None:
            out["loss"] = nn.functional.cross_entropy(logits, labels)
        return out


def main():
    set_seed(42)
    loader = DataLoader(ReviewDataset(1600), batch_size=BATCH_SIZE, shuffle=True)
    model = BagClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step = 0
    for epoch in range(EPOCHS):
        for batch in loader:
            out = model(**batch)
            out["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                print({"step": step, "loss": round(out["loss"].item(), 4)})


if __name__ == "__main__":
    main()
