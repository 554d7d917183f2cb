"""A whole archive lies in memory as one stream, and each fetch seeks to its record before it reads."""
import io

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 24


class Records(Dataset):
    def __init__(self, n):
        rows = np.random.RandomState(1).randn(n, WIDTH).astype(np.float32)
        self.stream, self.n = io.BytesIO(rows.tobytes()), n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.stream.seek(4 * WIDTH * i)
        x = torch.frombuffer(bytearray(self.stream.read(4 * WIDTH)), dtype=torch.float32)
        return x, x[:6].sum(0, keepdim=True)


torch.manual_seed(0)
loader = DataLoader(Records(1600), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(WIDTH, 80), nn.ReLU(), nn.Linear(80, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
