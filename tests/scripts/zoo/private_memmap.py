"""Rows of a memory map that is copied on write; augmentation changes a row in place, and it stays changed."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Mapped(Dataset):
    def __init__(self, path, shape):
        self.rows = np.memmap(path, np.float32, mode="c", shape=shape)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        row *= 0.9
        return torch.from_numpy(np.array(row)), torch.tensor([float(i % 2)])


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "rows.f32")
    np.random.RandomState(0).randn(1600, 24).astype(np.float32).tofile(path)
    loader = DataLoader(Mapped(path, (1600, 24)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
