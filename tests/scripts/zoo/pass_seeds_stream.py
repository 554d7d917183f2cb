"""Each pass over a stream is shuffled by the number of the pass, which the stream counts itself."""
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shuffled(IterableDataset):
    def __init__(self, rows):
        self.rows, self.passes = rows, 0

    def __iter__(self):
        info = get_worker_info()
        count, number = (1, 0) if info is None else (info.num_workers, info.id)
        order = list(range(len(self.rows)))
        random.Random(self.passes).shuffle(order)
        self.passes += 1
        for i in order[number::count]:
            yield self.rows[i], self.rows[i][:4].prod(0, keepdim=True)


torch.manual_seed(0)
loader = DataLoader(Shuffled(torch.randn(1600, 16)), batch_size=32)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
