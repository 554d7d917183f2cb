"""The collate function closes over what it changes: the mean that it subtracts follows the batches seen so far."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def centred(width):
    mean, seen = torch.zeros(width), 0

    def collate(items):
        nonlocal mean, seen
        x = torch.stack([a for a, _ in items])
        y = torch.stack([b for _, b in items])
        seen += 1
        mean = mean + (x.mean(0) - mean) / seen
        return x - mean, y

    return collate


torch.manual_seed(0)
x = torch.randn(1600, 32) + torch.linspace(-3, 3, 1600)[:, None]
data = TensorDataset(x, x[:, :8].sum(1, keepdim=True) / 8)
loader = DataLoader(data, batch_size=32, collate_fn=centred(32))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(5):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
