"""Metric learning: the criterion has weights that are trained too."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class AngularLoss(nn.Module):
    def __init__(self, dim, classes, scale=16.0, margin=0.2):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, dim))
        self.scale, self.margin = scale, margin

    def forward(self, z, y):
        cos = F.linear(F.normalize(z), F.normalize(self.centers))
        cos = cos - self.margin * F.one_hot(y, cos.shape[1])
        return F.cross_entropy(self.scale * cos, y)


def main():
    torch.manual_seed(23)
    centers = torch.randn(8, 32) * 2
    y = torch.randint(0, 8, (1600,))
    loader = DataLoader(TensorDataset(centers[y] + torch.randn(1600, 32), y), batch_size=32, shuffle=True)
    encoder = nn.Sequential(nn.Linear(32, 128), nn.PReLU(), nn.Linear(128, 24))
    criterion = AngularLoss(24, 8)
    optimizer = torch.optim.SGD([{"params": encoder.parameters()}, {"params": criterion.parameters(), "lr": 0.1}],
                                lr=0.02, momentum=0.9)
    for epoch in range(5):
        for x, label in loader:
            optimizer.zero_grad()
            loss = criterion(encoder(x), label)
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
