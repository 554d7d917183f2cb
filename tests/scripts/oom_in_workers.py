"""Every loader worker keeps a gigabyte of its own, as with a cache per process."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GIB = 2**30


class Caching(TensorDataset):
    cache = None

    def __getitem__(self, index):
        if self.cache is None and torch.utils.data.get_worker_info() is not None:
            self.cache = bytearray(GIB)
            self.cache[::4096] = b"\x01" * len(self.cache[::4096])
        time.sleep(0.003)
        return super().__getitem__(index)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(4096, 1)
    loader = DataLoader(Caching(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
