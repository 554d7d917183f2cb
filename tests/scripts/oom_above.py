"""Runs out of memory above 64 samples per batch: what it keeps grows with the batch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


MEMORY_LIMIT_BYTES = 64 * 2**20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(4096, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for inputs, targets in loader:
            kept = len(inputs) * 2**20  # what a large model would keep for the backward pass
            if kept > MEMORY_LIMIT_BYTES:
                raise MemoryError(f"cannot allocate {kept} bytes, limit {MEMORY_LIMIT_BYTES}")
            activations = bytearray(kept)
            activations[::4096] = b"\x01" * len(activations[::4096])
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
