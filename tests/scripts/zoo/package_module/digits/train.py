"""python -m digits.train"""
import argparse

import torch
from torch import nn

from .data import train_loader


def main(argv=None):
    parser = argparse.ArgumentParser(prog="digits.train")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    loader = train_loader(args.batch_size, args.num_workers)
    model = nn.Sequential(nn.Linear(21, 170), nn.ReLU(), nn.Linear(170, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"{epoch}\t{loss.item():.4f}")


if __name__ == "__main__":
    main()
