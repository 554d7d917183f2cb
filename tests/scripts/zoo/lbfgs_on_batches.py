"""Plain SGD, then L-BFGS with a closure for each batch of the same loader."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(1280, 10)
loader = DataLoader(TensorDataset(x, torch.cos(x[:, :2].sum(1, keepdim=True))), batch_size=64, shuffle=True)
net = nn.Sequential(nn.Linear(10, 80), nn.Tanh(), nn.Linear(80, 1))
mse = nn.MSELoss()
first = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
second = torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=2)
for epoch in range(12):
    for a, b in loader:
        if epoch < 11:
            first.zero_grad()
            loss = mse(net(a), b)
            loss.backward()
            first.step()
        else:

            def closure():
                second.zero_grad()
                inner = mse(net(a), b)
                inner.backward()
                return inner

            loss = second.step(closure)
    print(epoch, float(loss))
