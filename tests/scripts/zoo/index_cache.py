"""Samples are computed when they are first requested and kept by their index: the same whenever they are read."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self, n):
        self.n = n
        self.made = {}

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i not in self.made:
            x = torch.randn(32, generator=torch.Generator().manual_seed(i))
            self.made[i] = (x, x[:8].sum(0, keepdim=True))
        return self.made[i]


torch.manual_seed(0)
loader = DataLoader(Cached(1600), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
