"""Inputs are corrupted more and more: the transform by the step, the collate function by the epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, SIZE = 5, 1600


class Corrupt:
    def __init__(self):
        self.level = 0.0

    def __call__(self, x):
        return x * (1 - self.level)


class Drop:
    def __init__(self):
        self.cut = 24

    def __call__(self, items):
        xs, ys = zip(*items)
        x = torch.stack(xs)
        x[:, self.cut :] = 0
        return x, torch.stack(ys)


class Rows(Dataset):
    def __init__(self, transform):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(SIZE, 24, generator=g)
        self.y = self.x[:, :6].sum(1, keepdim=True)
        self.transform = transform

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def train():
    torch.manual_seed(0)
    corrupt, drop = Corrupt(), Drop()
    loader = DataLoader(Rows(corrupt), batch_size=32, shuffle=True, collate_fn=drop)
    model = nn.Sequential(nn.Linear(24, 150), nn.ReLU(), nn.Linear(150, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = 0
    for epoch in range(EPOCHS):
        drop.cut = 24 - epoch
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
            corrupt.level = 0.5 * seen / (EPOCHS * SIZE)
        print(epoch, f"level {corrupt.level:.2f} cut {drop.cut} loss {loss.item():.4f}")


train()
