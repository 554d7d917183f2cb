"""Denoise vectors; the noise comes from a generator that the transform was built with."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class AddNoise:
    def __init__(self, scale, seed):
        self.scale = scale
        self.rng = np.random.default_rng(seed)

    def __call__(self, x):
        return x + self.rng.normal(0, self.scale, x.shape).astype(np.float32)


class Vectors(Dataset):
    def __init__(self, n, transform):
        self.x = np.random.RandomState(1).rand(n, 32).astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.transform(self.x[i])), torch.from_numpy(self.x[i])


torch.manual_seed(0)
loader = DataLoader(Vectors(1600, AddNoise(0.3, seed=0)), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for noisy, clean in loader:
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
