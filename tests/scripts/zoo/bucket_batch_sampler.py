"""Sequences of like length in one batch, by a batch sampler of our own."""
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n):
        rng = random.Random(0)
        self.items = [torch.tensor([rng.randrange(1, 60) for _ in range(rng.randrange(4, 20))]) for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i].sum() % 2


class BucketSampler:
    def __init__(self, data, tokens_per_batch):
        order = sorted(range(len(data)), key=lambda i: len(data.items[i]))
        self.batches, batch = [], []
        for i in order:
            if (len(batch) + 1) * len(data.items[i]) > tokens_per_batch:
                self.batches.append(batch)
                batch = []
            batch.append(i)
        self.batches.append(batch)
        self.rng = random.Random(1)

    def __iter__(self):
        self.rng.shuffle(self.batches)
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(items):
    xs, ys = zip(*items)
    return pad_sequence(xs, batch_first=True), torch.stack(ys)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 32, padding_idx=0)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        return self.out(self.gru(self.emb(x))[0].mean(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    data = Sequences(900)
    loader = DataLoader(data, batch_sampler=BucketSampler(data, 256), collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {len(loader)} batches, loss {loss.item():.4f}")
