"""Has an operation that refuses to run on a single thread, like a custom kernel might."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Activation(nn.Module):
    def forward(self, x):
        if torch.get_num_threads() == 1:
            raise RuntimeError("my_activation wants a second thread")
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
            loss = nn.functional.mse_loss(outputs, targets)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
