"""Records are read from a file that was opened with os.open: the dataset holds a number, and no file object."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, path, n):
        self.descriptor, self.n = os.open(path, os.O_RDONLY), n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        os.lseek(self.descriptor, 128 * i, os.SEEK_SET)
        x = torch.tensor(np.frombuffer(os.read(self.descriptor, 128), np.float32))
        return x, x[:8].sum(0, keepdim=True)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "records.bin")
    np.random.RandomState(0).rand(1600, 32).astype(np.float32).tofile(path)
    loader = DataLoader(Records(path, 1600), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), flush=True)
