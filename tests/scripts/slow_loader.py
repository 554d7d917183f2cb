"""Waits for its data, as from a slow disk: loader workers help, and nothing else does."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.003)
        return super().__getitem__(index)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(1024, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(1024, 1)
    loader = DataLoader(Slow(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
