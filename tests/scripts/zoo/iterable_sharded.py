import argparse
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Numbered records; every worker reads its own share."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        info = get_worker_info()
        lo, hi = self.start, self.end
        if info is not None:
            share = math.ceil((self.end - self.start) / info.num_workers)
            lo = self.start + info.id * share
            hi = min(lo + share, self.end)
        for i in range(lo, hi):
            g = torch.Generator().manual_seed(i)
            x = torch.randn(16, generator=g)
            yield x, x[:3].sum().view(1)


def main(opts):
    torch.manual_seed(0)
    stream = DataLoader(Stream(0, 1280), batch_size=opts.bs)
    model = nn.Sequential(nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(opts.epochs):
        for x, y in stream:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch={epoch} loss={loss.item():.5f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--bs", default=16, type=int)
    p.add_argument("--epochs", default=3, type=int)
    main(p.parse_args())
