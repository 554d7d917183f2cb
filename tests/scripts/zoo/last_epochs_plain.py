"""No augmentation in the last two epochs, as detectors are trained: the switch lies three objects deep."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

EPOCHS = 5


class Flip:
    enabled = True

    def __call__(self, x):
        return x.flip(0) if self.enabled else x


class Chain:
    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Signals(Dataset):
    def __init__(self, augment):
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(2000, 16, generator=g)
        self.y = (self.x.abs().sum(1) > 12.8).long()
        self.augment = augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.augment(self.x[i]), self.y[i]


def close_augmentation(data):
    data.dataset.augment.steps[0].enabled = False


torch.manual_seed(0)
train = Subset(Signals(Chain(Flip())), range(1600))
loader = DataLoader(train, batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(16, 160), nn.Tanh(), nn.Linear(160, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    if epoch == EPOCHS - 2:
        close_augmentation(train)
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
