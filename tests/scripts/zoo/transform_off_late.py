"""The transform of the dataset below the subset is taken away for the last epoch, by its attribute."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Waves(Dataset):
    def __init__(self, n, transform=None):
        g = torch.Generator().manual_seed(2)
        self.phase = torch.rand(n, generator=g) * 6.28
        self.transform = transform

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, i):
        wave = torch.sin(torch.arange(32) / 5 + self.phase[i])
        return (self.transform(wave) if self.transform else wave), self.phase[i].cos().unsqueeze(0)


def mirrored(wave):
    return wave.flip(0)


def train(model, loader, opt, epochs):
    for epoch in range(epochs):
        if epoch == epochs - 1:
            setattr(loader.dataset.dataset, "transform", None)
        for wave, target in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(wave), target)
            loss.backward()
            opt.step()
        print(epoch, loss.item())


torch.manual_seed(0)
part, rest = random_split(Waves(2000, mirrored), [1600, 400])
net = nn.Sequential(nn.Linear(32, 120), nn.Tanh(), nn.Linear(120, 1))
train(net, DataLoader(part, batch_size=32, shuffle=True), torch.optim.Adam(net.parameters(), lr=1e-3), 5)
