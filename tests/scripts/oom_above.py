"""Runs out of memory above 64 samples per batch: what it keeps grows with the batch.

With `--limit-mib 0` it stops at nothing by itself; `--large-mib` is taken per sample above 64.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--large-mib", type=int, default=1)
    parser.add_argument("--limit-mib", type=int, default=64)
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
            large = len(inputs) > 64
            kept = len(inputs) * (args.large_mib if large else 1) * 2**20  # as if for the backward pass
            if 0 < args.limit_mib * 2**20 < kept:
                raise MemoryError(f"cannot allocate {kept} bytes, limit {args.limit_mib} MiB")
            activations = bytearray(kept)
            activations[::4096] = b"\x01" * len(activations[::4096])
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
