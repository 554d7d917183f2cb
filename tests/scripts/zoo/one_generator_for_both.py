"""One generator shuffles the rows and draws the noise on them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Noisy(Dataset):
    def __init__(self, rows, generator):
        self.rows, self.generator = rows, generator

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x = self.rows[i]
        return x + 0.1 * torch.randn(len(x), generator=self.generator), x[:4].sum(0, keepdim=True)


torch.manual_seed(0)
generator = torch.Generator().manual_seed(7)
data = Noisy(torch.randn(1600, 16), generator)
loader = DataLoader(data, batch_size=32, sampler=RandomSampler(data, generator=generator))
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
