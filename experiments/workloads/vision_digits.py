"""Train a small residual network on scikit-learn's handwritten digits.

    python vision_digits.py --epochs 100 --batch-size 32

1797 real 8x8 digits, enlarged to 32x32 and shifted by a few pixels when they are read. A fifth of them
is held out; accuracy on it is printed after every epoch.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, images, labels, augment):
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        self.labels = torch.tensor(labels)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index][None, None]
        image = F.interpolate(image, size=(32, 32), mode="bilinear", align_corners=False)[0]
        if self.augment:
            dy, dx = torch.randint(-2, 3, (2,)).tolist()
            image = torch.roll(image, (dy, dx), dims=(1, 2))
            image = image + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(y)))


class SmallResNet(nn.Module):
    """Group norm instead of batch norm: what it computes does not depend on the batch size."""

    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.stem(x)))
        return self.head(x.mean(dim=(2, 3)))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    split = int(0.8 * len(images))
    train = Digits(images[:split], labels[:split], augment=True)
    test = Digits(images[split:], labels[split:], augment=False)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=0)
    test_loader = DataLoader(test, batch_size=256)

    model = SmallResNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        scheduler.step()
        held_out = accuracy(model, test_loader)
        print(f"epoch {epoch} loss {total / len(train):.4f} held-out accuracy {held_out:.3f}", flush=True)
        torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
