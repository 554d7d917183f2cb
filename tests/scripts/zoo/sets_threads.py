import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
loader = DataLoader(TensorDataset(x, x[:, :2].prod(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(24, 200), nn.ReLU(), nn.Linear(200, 1))
optimizer = torch.optim.Adam(model.parameters())
print("threads", torch.get_num_threads())
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
