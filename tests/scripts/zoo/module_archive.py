"""Arrays come from an archive that the module opened; the dataset holds their names only."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "arrays.npz")
rng = np.random.RandomState(0)
np.savez(path, **{f"a{i}": rng.rand(32).astype(np.float32) for i in range(320)})
ARCHIVE = np.load(path)


class Named(Dataset):
    def __init__(self, names):
        self.names = list(names)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        x = torch.from_numpy(ARCHIVE[self.names[i]])
        return x, x[:8].sum(0, keepdim=True)


torch.manual_seed(0)
loader = DataLoader(Named(ARCHIVE.files), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(10):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
