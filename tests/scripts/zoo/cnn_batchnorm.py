"""Residual network on the 8x8 digits of scikit-learn."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self, channels=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(BasicBlock(channels), BasicBlock(channels))
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        return self.linear(self.blocks(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description="digits")
    parser.add_argument("--lr", default=0.05, type=float, help="learning rate")
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("-j", "--workers", default=0, type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:1600] / 16.0, dtype=torch.float32).unsqueeze(1)
    train_set = TensorDataset(images, torch.tensor(digits.target[:1600]))
    trainloader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    net = ResNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for epoch in range(4):
        net.train()
        correct = 0
        for inputs, targets in trainloader:
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            correct += outputs.argmax(1).eq(targets).sum().item()
        scheduler.step()
        print("epoch %d: %.1f%%" % (epoch, 100.0 * correct / len(train_set)))


if __name__ == "__main__":
    main()
