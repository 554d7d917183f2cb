"""Options are the fields of a dataclass."""
import argparse
from dataclasses import dataclass, field, fields

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainArgs:
    batch_size: int = field(default=32, metadata={"help": "examples per step"})
    lr: float = 3e-3
    epochs: int = 4
    hidden: int = 160
    num_workers: int = 0
    seed: int = 5

    @classmethod
    def from_cli(cls):
        parser = argparse.ArgumentParser()
        for f in fields(cls):
            parser.add_argument(f"--{f.name}", type=f.type, default=f.default, help=f.metadata.get("help"))
        return cls(**vars(parser.parse_args()))


def build(args: TrainArgs):
    torch.manual_seed(args.seed)
    x = torch.randn(1600, 18)
    y = (x[:, 0] * x[:, 1] > 0).long()
    data = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)
    model = nn.Sequential(nn.Linear(18, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU(),
                          nn.Linear(args.hidden, 2))
    return data, model


def main():
    args = TrainArgs.from_cli()
    data, model = build(args)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss:.4f}")


if __name__ == "__main__":
    main()
