import torch, torch.nn as nn
from torch.utils.data import Dataset, DataLoader

# regression from an image, a vector of measurements and a category


class Scans(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        self.img = torch.rand(n, 1, 12, 12, generator=g)
        self.meta = torch.randn(n, 6, generator=g)
        self.site = torch.randint(0, 5, (n,), generator=g)
        self.target = self.img.mean((1, 2, 3)) * 4 + self.meta[:, 0] + 0.3 * self.site

    def __len__(self):
        return len(self.target)

    def __getitem__(self, k):
        return (self.img[k], self.meta[k]), self.site[k], self.target[k], k


class Fusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2)
        self.emb = nn.Embedding(5, 8)
        self.fc = nn.Sequential(nn.Linear(8 * 25 + 6 + 8, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, img, meta, site):
        h = torch.relu(self.conv(img)).flatten(1)
        return self.fc(torch.cat([h, meta, self.emb(site)], 1)).squeeze(1)


def run(epochs=4, bs=16, lr=2e-3):
    torch.manual_seed(11)
    dl = DataLoader(Scans(1024), bs, True)
    model, loss_fn = Fusion(), nn.SmoothL1Loss()
    optim = torch.optim.Adam(model.parameters(), lr)
    for e in range(epochs):
        seen = 0
        for (img, meta), site, y, idx in dl:
            optim.zero_grad()
            loss = loss_fn(model(img, meta, site), y)
            loss.backward()
            optim.step()
            seen += len(idx)
        print(f"[{e}] {seen} scans, loss {loss:.4f}")


if __name__ == '__main__':
    run()
