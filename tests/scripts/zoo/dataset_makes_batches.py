import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    """Each item is a whole batch, as in a table that is stored by row groups."""

    def __init__(self, shards=60, rows=40):
        gen = torch.Generator().manual_seed(9)
        self.x = torch.randn(shards, rows, 10, generator=gen)
        self.y = self.x.pow(2).sum(-1, keepdim=True).sqrt()

    def __len__(self):
        return self.x.shape[0]

    def __getitem__(self, i):
        return self.x[i], self.y[i]


torch.manual_seed(4)
loader = DataLoader(Shards(), batch_size=None, shuffle=True)
model = nn.Sequential(nn.Linear(10, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1))
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, float(loss))
