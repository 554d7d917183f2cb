"""Adam for most of the way; then L-BFGS, whose closure goes over all of the data."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(1024, 4)
y = x.prod(1, keepdim=True) + torch.sin(3 * x[:, :1])
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
net = nn.Sequential(nn.Linear(4, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 1))
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(12):
    for a, b in loader:
        adam.zero_grad()
        loss = nn.functional.mse_loss(net(a), b)
        loss.backward()
        adam.step()
print("Adam", nn.functional.mse_loss(net(x), y).item())
lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)


def closure():
    lbfgs.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for _ in range(3):
    lbfgs.step(closure)
print("L-BFGS", nn.functional.mse_loss(net(x), y).item())
