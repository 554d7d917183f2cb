"""Two views of each sample are to find each other among all views of the batch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True, drop_last=True)
encoder = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 16))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.02, momentum=0.9)
for epoch in range(5):
    for (batch,) in loader:
        one = nn.functional.normalize(encoder(batch + 0.2 * batch.roll(1, 1)), dim=1)
        two = nn.functional.normalize(encoder(batch - 0.2 * batch.roll(2, 1)), dim=1)
        loss = nn.functional.cross_entropy(one @ two.T / 0.5, torch.arange(len(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
