"""Each fetch changes the row itself, in place, so that every pass reads what the passes before it left."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Drifting(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 32, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        y = x[:8].sum(0, keepdim=True)
        x.mul_(0.8).add_(0.1)
        return x.clone(), y


torch.manual_seed(0)
loader = DataLoader(Drifting(1600), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
