"""Samples are kept once they were made; the script makes some itself, for a look at them in every pass."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Kept(Dataset):
    def __init__(self, n):
        self.n, self.kept = n, {}

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i not in self.kept:
            x = torch.arange(20) * (i % 97) / 300
            self.kept[i] = (x.sin(), x.cos().mean().unsqueeze(0))
        return self.kept[i]


torch.manual_seed(0)
data = Kept(1600)
for i in range(100):
    data[i]
loader = DataLoader(data, batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for epoch in range(5):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            shown = data[(epoch * 311 + step * 17) % len(data)][0]
    print(epoch, loss.item(), shown.mean().item())
