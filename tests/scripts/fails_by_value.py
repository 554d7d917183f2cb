"""A training that works unchanged; each of four knob values makes it fail in a different way."""

import argparse
import gc
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GIB = 2**30


class Locked(TensorDataset):
    """Waits forever in a worker process, as one that forks with a held lock does."""

    lock = threading.Lock()

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            self.lock.acquire()
            self.lock.acquire()
        time.sleep(0.001)
        return super().__getitem__(index)


class Activation(nn.Module):
    """Refuses to run on a single thread, like a custom kernel might."""

    def forward(self, x):
        if torch.get_num_threads() == 1:
            raise RuntimeError("my_activation requires a second thread")
        return torch.relu(x)


class Model(nn.Sequential):
    """Overflows where the garbage collector leaves objects alone, from the fourth batch on."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 3 and gc.get_freeze_count():
            x = x * float("inf") - x * float("inf")
        return super().forward(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(4096, 1)
    loader = DataLoader(Locked(x, y), batch_size=args.batch_size, shuffle=True)
    model = Model(nn.Linear(32, 1024), Activation(), nn.Linear(1024, 1024), Activation(), nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    cache = None
    for _ in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if optimizer.param_groups[0].get("fused") and cache is None:
                cache = bytearray(2 * GIB)
                cache[::4096] = b"\x01" * len(cache[::4096])


if __name__ == "__main__":
    main()
