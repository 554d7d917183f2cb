import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def loaders(bs):
    torch.manual_seed(50)
    x = torch.randn(1600, 16)
    return DataLoader(TensorDataset(x, (x > 0).float().sum(1, keepdim=True)), batch_size=bs, shuffle=True)


train = loaders(32)
model = nn.Sequential(nn.Linear(16, 200), nn.GELU(), nn.Linear(200, 1))
optimizer = optim.AdamW(model.parameters(), lr=1e-3, foreach=True)  # for-loop version is slow here
for epoch in range(5):
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"{epoch:2d} {loss.item():.4f}")
