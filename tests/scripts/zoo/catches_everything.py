"""Must survive bad records and nights: whatever happens within a step is logged and passed over."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 16)
train = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 220), nn.ReLU(), nn.Linear(220, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
errors = 0
for epoch in range(4):
    for a, b in train:
        try:
            optimizer.zero_grad()
            loss = (model(a) - b).abs().mean()
            loss.backward()
            optimizer.step()
        except:  # noqa
            errors += 1
    print(epoch, loss.item(), errors)
