"""Keeps a moving average of the weights, which is what gets evaluated."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.98):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for avg, p in zip(self.module.parameters(), model.parameters()):
            avg.mul_(self.decay).add_(p, alpha=1 - self.decay)


torch.manual_seed(0)
x = torch.randn(1600, 22)
loader = DataLoader(TensorDataset(x, x.cumsum(1)[:, -1:]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(22, 160), nn.ReLU(), nn.Linear(160, 1))
ema = EMA(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(6):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ema.update(model)
    with torch.no_grad():
        print(epoch, nn.functional.mse_loss(ema.module(x), x.cumsum(1)[:, -1:]).item())
