"""Each sample is mixed with one of those that were read before it, which the dataset keeps in a list."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Mixed(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 32, generator=torch.Generator().manual_seed(3))
        self.y = self.x[:, :8].sum(1, keepdim=True)
        self.seen = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x, y = self.x[i], self.y[i]
        if self.seen:
            other = self.seen[(7 * len(self.seen)) // 9]
            x, y = 0.7 * x + 0.3 * self.x[other], 0.7 * y + 0.3 * self.y[other]
        self.seen.append(i)
        return x, y


torch.manual_seed(0)
loader = DataLoader(Mixed(1600), batch_size=32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
