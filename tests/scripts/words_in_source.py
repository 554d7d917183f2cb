"""Settings are words and numbers of the source: no option, batches by index, autocast by a word."""

import torch
from torch import nn

PRECISION = "fp32"
BATCH_SIZE = 64

torch.manual_seed(0)
x = torch.randn(2048, 64)
y = x[:, :8].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(100_000):
    for rows in torch.randperm(len(x)).split(BATCH_SIZE):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=PRECISION != "fp32"):
            out = model(x[rows])
        loss = nn.functional.mse_loss(out.float(), y[rows])
        loss.backward()
        optimizer.step()
