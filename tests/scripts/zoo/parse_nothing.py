"""Exported from a notebook: the parser never sees the command line."""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=28)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--lr", type=float, default=5e-3)
args = parser.parse_args([])

torch.manual_seed(2)
teacher = torch.randn(12, 1)
model = nn.Sequential(nn.Linear(12, 60), nn.ReLU(), nn.Linear(60, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(args.steps):
    x = torch.randn(args.batch_size, 12)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
