"""Stages with batches of their own: what one line builds is not of one size."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
data = TensorDataset(x, x[:, :4].sum(1, keepdim=True).sin())
net = nn.Sequential(nn.Linear(24, 160), nn.ReLU(), nn.Linear(160, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for size, passes in ((64, 6), (32, 1), (16, 1)):
    loader = DataLoader(data, batch_size=size, shuffle=True)
    for _ in range(passes):
        for a, b in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(a), b)
            loss.backward()
            opt.step()
    print(size, loss.item())
