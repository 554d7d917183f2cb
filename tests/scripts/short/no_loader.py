"""One pass of five steps over slices of a tensor, without a loader."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(80, 32)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for begin in range(0, len(x), args.batch_size):
    inputs, targets = x[begin : begin + args.batch_size], y[begin : begin + args.batch_size]
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(loss.item())
