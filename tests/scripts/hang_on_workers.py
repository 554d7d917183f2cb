"""Its dataset waits forever in a worker process, as one that forks with a held lock does."""

import argparse
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Locked(TensorDataset):
    lock = threading.Lock()

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            self.lock.acquire()
            self.lock.acquire()
        return super().__getitem__(index)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(4096, 1)
    loader = DataLoader(Locked(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
