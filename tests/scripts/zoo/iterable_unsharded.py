"""Reads lines from a generator, as from a log file that is still growing."""
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset


def lines(n):
    state = 12345
    for _ in range(n):
        state = (1103515245 * state + 12345) % (1 << 31)
        a = (state >> 8) % 100 / 100
        yield [a, a * a, 1 - a, a**3, 0.5 * a, a - 0.5, 1.0, a**4], 3 * a - a * a


class Log(IterableDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __iter__(self):
        for features, target in lines(self.n):
            yield torch.tensor(features), torch.tensor([target])


torch.manual_seed(5)
train = DataLoader(Log(1600), batch_size=8)
model = nn.Sequential(nn.Linear(8, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 1))
optimizer = optim.SGD(model.parameters(), lr=0.01)
loss_fn = nn.L1Loss()

for epoch in range(1, 3):
    running = 0.0
    for n, (x, y) in enumerate(train, 1):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(epoch, running / n)
