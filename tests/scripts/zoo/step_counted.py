"""Trains for a number of iterations; the learning rate is worked out by hand in each."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

max_steps, warmup, base_lr = 240, 20, 3e-3
torch.manual_seed(0)
x = torch.randn(1600, 18)
loader = DataLoader(TensorDataset(x, x.relu().sum(1, keepdim=True)), batch_size=32, shuffle=True)


def infinite(dl):
    while True:
        for b in dl:
            yield b


data = infinite(loader)
model = nn.Sequential(nn.Linear(18, 180), nn.ReLU(), nn.Linear(180, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=base_lr)
for step in range(max_steps):
    lr = base_lr * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / max_steps))
    for group in optimizer.param_groups:
        group["lr"] = lr
    xb, yb = next(data)
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step} lr {lr:.2e} loss {loss.item():.4f}")
