"""Constants at the top, batches by index over a shuffled table; a pass ends with what is left of it."""
import torch
from torch import nn
import torch.nn.functional as F

BATCH_SIZE = 32
EPOCHS = 5
LR = 3e-3

torch.manual_seed(4)
X = torch.randn(1588, 14)
Y = X[:, :5].sin().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(14, 120), nn.ReLU(), nn.Linear(120, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=LR)

for epoch in range(EPOCHS):
    order = torch.randperm(len(X))
    total = 0.0
    for start in range(0, len(X), BATCH_SIZE):
        rows = order[start:start + BATCH_SIZE]
        optimizer.zero_grad()
        loss = F.mse_loss(model(X[rows]), Y[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    print(f"epoch {epoch}: {total / len(X):.5f}")
