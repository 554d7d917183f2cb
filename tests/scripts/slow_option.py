"""Writes down its state far too often, as an option of its own says; nothing else holds it back."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(1024, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(1024, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if step % args.save_every == 0:
                time.sleep(0.04)
        print(f"epoch {epoch} loss {loss.item():.4f} every {args.save_every}", flush=True)


if __name__ == "__main__":
    main()
