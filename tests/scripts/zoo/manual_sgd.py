# What is torch.nn *really*: weights are updated by hand.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Polynomial(nn.Module):
    def __init__(self, degree):
        super().__init__()
        self.fc1 = nn.Linear(degree, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x):
        return self.fc2(torch.sigmoid(self.fc1(x)))


torch.manual_seed(0)
t = torch.rand(1600, 1) * 2 - 1
features = torch.cat([t**k for k in range(1, 9)], dim=1)
targets = torch.sin(3 * t)
loader = DataLoader(TensorDataset(features, targets), batch_size=16, shuffle=True)
model = Polynomial(8)
lr = 0.05

for epoch in range(4):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad * lr
            model.zero_grad()
    print(epoch, loss.item())
