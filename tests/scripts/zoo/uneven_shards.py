"""A stream in equal shares for its workers: what is left over is read by none of them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shares(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        info = get_worker_info()
        count, number = (1, 0) if info is None else (info.num_workers, info.id)
        each = len(self.rows) // 7 // count * 7
        for row in self.rows[number * each : (number + 1) * each]:
            yield row, row[:4].sum(0, keepdim=True)


torch.manual_seed(0)
loader = DataLoader(Shares(torch.randn(1603, 16)), batch_size=32)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
