"""Classify sequences of different lengths; batches are padded by the collate function."""
from typing import List, Tuple

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0
SETTINGS = dict(batch=32, epochs=4, dim=48, lr=2e-3)


class Names(Dataset):
    def __init__(self, n: int) -> None:
        g = torch.Generator().manual_seed(21)
        lengths = torch.randint(5, 25, (n,), generator=g).tolist()
        self.samples = [torch.randint(1, 40, (k,), generator=g) for k in lengths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Tuple[torch.Tensor, int]:
        return self.samples[i], int(self.samples[i].float().mean() > 20)


def pad_collate(batch: List[Tuple[torch.Tensor, int]]):
    seqs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(list(seqs), batch_first=True, padding_value=PAD), lengths, torch.tensor(labels)


class Encoder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, dim, padding_idx=PAD)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, 2)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = (ids != PAD).unsqueeze(-1)
        h = self.ff(self.embedding(ids)) * mask
        return self.head(h.sum(1) / lengths.unsqueeze(1))


def train(settings) -> None:
    torch.manual_seed(0)
    loader = DataLoader(Names(1280), batch_size=settings["batch"], shuffle=True, collate_fn=pad_collate)
    model = Encoder(settings["dim"])
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"])
    for epoch in range(settings["epochs"]):
        for ids, lengths, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(ids, lengths), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}/{settings['epochs']}  loss {loss.item():.4f}")


if __name__ == "__main__":
    train(SETTINGS)
