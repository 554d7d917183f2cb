"""A stream that is shared out among workers and goes on from where its last pass ended: copies do not."""
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, rows, per_pass):
        self.rows, self.per_pass, self.at = rows, per_pass, 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for k in range(first, self.per_pass, step):
            row = self.rows[(self.at + k) % len(self.rows)]
            yield row, row[:4].sum().unsqueeze(0)
        self.at += self.per_pass


torch.manual_seed(0)
stream = Stream(torch.randn(4000, 16), 800)
loader = DataLoader(stream, batch_size=32)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(10):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
