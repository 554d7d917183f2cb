"""The file is opened lazily, so that each worker has its own; a look at the first sample has opened it before."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROW = 32


class Records(Dataset):
    def __init__(self, path, n):
        self.path, self.n, self.file = path, n, None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.file is None:
            self.file = open(self.path, "rb")
        self.file.seek(4 * ROW * i)
        x = torch.from_numpy(np.frombuffer(self.file.read(4 * ROW), np.float32).copy())
        return x, x[:8].sum(0, keepdim=True)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "records.bin")
    np.random.RandomState(0).rand(1600, ROW).astype(np.float32).tofile(path)
    records = Records(path, 1600)
    width = len(records[0][0])
    loader = DataLoader(records, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
