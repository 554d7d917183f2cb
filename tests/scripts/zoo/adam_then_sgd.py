"""Another optimizer from the third epoch on, as some train: its steps are counted with those before."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 18)
data = TensorDataset(x, x[:, :6].prod(1, keepdim=True).tanh())
loader = DataLoader(data, batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(18, 110), nn.Tanh(), nn.Linear(110, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 2:
        optimizer = torch.optim.SGD(net.parameters(), lr=5e-3, momentum=0.9)
    for inputs, target in loader:
        loss = nn.functional.mse_loss(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, type(optimizer).__name__, loss.item())
