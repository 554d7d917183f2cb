"""Adam first, plain SGD for the rest."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 20)
loader = DataLoader(TensorDataset(x, torch.sin(x.sum(1, keepdim=True))), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(20, 170), nn.Tanh(), nn.Linear(170, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(6):
    if epoch == 2:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        print("switched to", type(optimizer).__name__)
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
