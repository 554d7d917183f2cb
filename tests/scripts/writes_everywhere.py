"""Writes wherever a training script may: relative, absolute, appended, deleted, renamed, beside itself."""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    torch.manual_seed(0)
    beside = Path(__file__).resolve().parent
    out = Path(args.out)
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text(json.dumps(vars(args)))
    with open("history.log", "a") as history:
        history.write("started\n")
    (beside / "last_run.txt").write_text("here\n")
    Path("old.ckpt").unlink(missing_ok=True)

    x = torch.randn(4096, 32)
    y = x @ torch.randn(32, 1) + 0.1 * torch.randn(4096, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    for _ in range(1000):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                torch.save(model.state_dict(), "model.tmp")
                os.replace("model.tmp", "model.pt")


if __name__ == "__main__":
    main()
