"""Features come from a frozen encoder that runs in the loader's worker processes."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Encoded(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.raw = torch.randn(n, 40, generator=g)
        self.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16))
        for p in self.encoder.parameters():
            p.requires_grad_(False)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        with torch.no_grad():
            return self.encoder(self.raw[i]), self.raw[i].mean()


def main(epochs=4, batch_size=32, workers=2):
    torch.manual_seed(0)
    loader = DataLoader(Encoded(1280), batch_size=batch_size, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for z, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(z).squeeze(1), target)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
