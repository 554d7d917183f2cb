"""Before the last two epochs the strong transform is taken out of the composed ones, in the loader's dataset."""
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Signals(Dataset):
    def __init__(self, seed, transform):
        self.x = torch.randn(800, 32, generator=torch.Generator().manual_seed(seed))
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.x[i, :8].sum(0, keepdim=True)


def without_mosaic(loader):
    for part in loader.dataset.datasets:
        part.transform.transforms.pop(0)


torch.manual_seed(0)
parts = [Signals(seed, Compose([lambda x: x.roll(5), lambda x: 2 * x])) for seed in (1, 2)]
loader = DataLoader(ConcatDataset(parts), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 3:
        without_mosaic(loader)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
