"""Noise comes from a generator of the module, which a function of the data pipeline uses by its name."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RNG = np.random.default_rng(7)


def corrupt(x):
    return x + RNG.normal(0, 0.3, x.shape).astype(np.float32)


class Vectors(Dataset):
    def __init__(self, n):
        self.x = np.random.RandomState(1).rand(n, 32).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(corrupt(self.x[i])), torch.from_numpy(self.x[i])


torch.manual_seed(0)
loader = DataLoader(Vectors(1600), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for noisy, clean in loader:
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
