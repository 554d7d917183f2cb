"""Callbacks in a list raise the strength of a transform by setattr, after every batch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Jitter:
    strength = 0.0

    def __call__(self, x):
        return x + self.strength * torch.randn_like(x)


class Rows(Dataset):
    def __init__(self, transform):
        self.rows = torch.randn(1600, 24, generator=torch.Generator().manual_seed(1))
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x = self.rows[i]
        return self.transform(x), x[:4].sum(0, keepdim=True)


class Ramp:
    def __init__(self, target, name, steps):
        self.target, self.name, self.steps = target, name, steps

    def on_batch_end(self, step):
        setattr(self.target, self.name, min(0.5, step / self.steps))


class Log:
    def on_batch_end(self, step):
        if step % 100 == 0:
            print(step)


torch.manual_seed(0)
jitter = Jitter()
callbacks = [Log(), Ramp(jitter, "strength", 500)]
loader = DataLoader(Rows(jitter), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(24, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        for callback in callbacks:
            callback.on_batch_end(step)
