"""Hard examples are drawn more often: the loop writes losses into what the sampler draws by."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class ByLoss(Sampler):
    def __init__(self, n):
        self.weights, self.n = torch.ones(n), n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield int(torch.multinomial(self.weights, 1))


torch.manual_seed(0)
x = torch.randn(1600, 16)
data = TensorDataset(torch.arange(1600), x, x[:, :4].prod(1, keepdim=True))
sampler = ByLoss(1600)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for rows, inputs, targets in loader:
        each = nn.functional.mse_loss(model(inputs), targets, reduction="none").mean(1)
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.weights[rows] = each.detach().clamp(0.05, 5.0)
    print(epoch, loss.item())
