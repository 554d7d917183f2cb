"""Train a deep, narrow network on tables: hundreds of kernels a step, each of them tiny.

    python small_steps.py --batch-size 256

What such a script waits for is the launching of kernels, not their work.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.last = nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.last(F.silu(self.first(y)) * torch.sigmoid(self.gate(y)))


class Net(nn.Module):
    def __init__(self, columns, width, depth):
        super().__init__()
        self.first = nn.Linear(columns, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--small", action="store_true", help="a network for a try on a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.small:
        args.depth, args.rows = 4, min(args.rows, 2048)
    x = torch.randn(args.rows, 32)
    y = torch.sin(x[:, 0] * x[:, 1]) + 0.5 * x[:, 2] + 0.1 * torch.randn(args.rows)
    loader = DataLoader(
        TensorDataset(x, y),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    model = Net(32, 64, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for step, (columns, wanted) in enumerate(loader):
            columns, wanted = columns.to(device), wanted.to(device)
            optimizer.zero_grad()
            loss = F.mse_loss(model(columns), wanted)
            loss.backward()
            optimizer.step()
            if step % 200 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
