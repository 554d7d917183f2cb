"""Accelerate's own loop."""

import torch
from accelerate import Accelerator
from record import finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(5)
x = torch.randn(192, 16)
net = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
steps = samples = 0
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        steps += 1
        samples += len(inputs)
finish(model, steps, samples)
