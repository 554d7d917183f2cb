"""Eight optimizer steps in all: two epochs of four, four loader workers, an evaluation and a checkpoint each."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(index))
        return image[:, ::2, ::2], image


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batchSize", type=int, default=16)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--nEpochs", type=int, default=2)
    opt = parser.parse_args()

    torch.manual_seed(1)
    training = DataLoader(dataset=Images(64), num_workers=opt.threads, batch_size=opt.batchSize, shuffle=True)
    testing = DataLoader(dataset=Images(8), num_workers=opt.threads, batch_size=4)
    model = nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 4, 3, padding=1), nn.PixelShuffle(2)
    )
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(opt.nEpochs):
        for image, target in training:
            optimizer.zero_grad()
            loss = criterion(model(image), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = sum(criterion(model(image), target).item() for image, target in testing)
        print(f"epoch {epoch}: {error / len(testing):.4f}")
        torch.save(model, f"model_epoch_{epoch}.pth")


if __name__ == "__main__":
    main()
