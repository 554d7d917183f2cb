"""The dataset has a length, and takes the next row of a stream, whichever index is requested."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def rows(count):
    generator = torch.Generator().manual_seed(9)
    table = torch.randn(count, 32, generator=generator)
    while True:
        for row in table[torch.randperm(count, generator=generator)]:
            yield row, row[:8].sum(0, keepdim=True)


class Stream(Dataset):
    def __init__(self, count):
        self.count = count
        self.rows = rows(count)

    def __len__(self):
        return self.count

    def __getitem__(self, _):
        return next(self.rows)


torch.manual_seed(0)
loader = DataLoader(Stream(1600), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
