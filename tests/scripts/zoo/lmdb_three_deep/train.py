"""Features lie in a database whose environment is opened by a store of a source of the dataset."""
import os
import struct
import tempfile

import lmdb
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 24


class Store:
    def __init__(self, path):
        self.env = lmdb.open(path, readonly=True)


class Source:
    def __init__(self, path):
        self.store = Store(path)

    def features(self, i):
        return np.frombuffer(self.store.env.get(struct.pack(">I", i), WIDTH), np.float32)


class Features(Dataset):
    def __init__(self, path, n):
        self.source, self.n = Source(path), n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = torch.tensor(self.source.features(i))
        return x, x[:6].sum(0, keepdim=True)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "data.mdb")
    np.random.RandomState(0).rand(1600, WIDTH).astype(np.float32).tofile(path)
    loader = DataLoader(Features(path, 1600), batch_size=32, shuffle=True)
    net = nn.Sequential(nn.Linear(WIDTH, 80), nn.ReLU(), nn.Linear(80, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
