"""Rows come from SQLite, by a connection that the reader of the dataset opened."""
import os
import sqlite3
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reader:
    def __init__(self, path):
        self.connection = sqlite3.connect(path)

    def row(self, i):
        (found,) = self.connection.execute("select x from rows where i = ?", (i,)).fetchone()
        return np.frombuffer(found, np.float32)


class Rows(Dataset):
    def __init__(self, reader, n):
        self.reader, self.n = reader, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = torch.tensor(self.reader.row(i))
        return x, x[:8].sum(0, keepdim=True)


def write(path, n):
    rng = np.random.RandomState(0)
    with sqlite3.connect(path) as database:
        database.execute("create table rows (i integer primary key, x blob)")
        rows = [(i, rng.rand(32).astype(np.float32).tobytes()) for i in range(n)]
        database.executemany("insert into rows values (?, ?)", rows)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "rows.db")
    write(path, 1600)
    loader = DataLoader(Rows(Reader(path), 1600), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), flush=True)
