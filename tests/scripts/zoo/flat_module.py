import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

X = torch.randn(1920, 20)
Y = torch.sin(X @ torch.randn(20, 1)) + 0.1 * torch.randn(1920, 1)
loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)

net = nn.Sequential(
    nn.Linear(20, 128),
    nn.Tanh(),
    nn.Linear(128, 128),
    nn.Tanh(),
    nn.Linear(128, 1),
).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.MSELoss()

for epoch in range(6):
    total = 0.0
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        opt.zero_grad()
        loss = criterion(net(xb), yb)
        loss.backward()
        opt.step()
        total += loss.item() * len(xb)
    print("epoch", epoch, "mse", total / len(X))
