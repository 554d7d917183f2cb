"""Overflows on a single thread: its activations are no numbers from the twentieth batch on."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Activation(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if torch.get_num_threads() == 1 and self.calls > 20:
            x = x * float("inf") - x * float("inf")
        return torch.relu(x)


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
        nn.Linear(32, 1024), Activation(), nn.Linear(1024, 1024), Activation(), nn.Linear(1024, 1)
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
