"""Train a ResNet-50, written out in plain PyTorch, on pictures that are made as they are read.

    python resnet50.py --epochs 2 --batch-size 64 --workers 4

He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride in the 3x3 convolution.
"""

import argparse

import torch
from images import Pictures
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depths, width, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        layers, inputs = [], width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                layers.append(Bottleneck(inputs, width * 2**stage, 2 if stage and not block else 1))
                inputs = 4 * width * 2**stage
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(self.layers(x).mean(dim=(2, 3)))


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = seen = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        seen += len(labels)
    model.train()
    return right / seen


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--samples", type=int, default=64_000, help="pictures in an epoch")
    parser.add_argument("--small", action="store_true", help="a net and pictures for a try on a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, stored, classes = (32, 40, 10) if args.small else (224, 256, 100)
    train = Pictures(args.samples, classes, size, stored)
    test = Pictures(max(args.batch_size, args.samples // 50), classes, size, stored, augment=False)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test, batch_size=args.batch_size)

    model = ResNet([1, 1, 1, 1], 8, classes) if args.small else ResNet([3, 4, 6, 3], 64, classes)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(train_loader):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} held-out accuracy {accuracy(model, test_loader, device):.3f}", flush=True)


if __name__ == "__main__":
    main()
