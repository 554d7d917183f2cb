"""A training loop whose bottleneck is planted: shares of a step by kind, given on the command line.

    python planted.py --share input=0.7 --share compute=0.1 --share memory=0.1 --share overhead=0.1 \
        --each compute=0.001 --each memory=0.004 --each overhead=0.00001

Every part is repeated as often as makes its share of a step; how long one repetition takes is read from
this file first, in a process of its own (--calibrate), so that the training loop is all that a trial sees.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.060
BATCH = 8


class Samples(Dataset):
    """Loading burns CPU in Python for so many seconds per sample, as decoding would."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        until = time.thread_time() + self.seconds
        value = index
        while time.thread_time() < until:
            value = (value * 1103515245 + 12345) % 2**31
        return torch.full((16,), float(value % 7))


class Compute(nn.Module):
    """Products of square matrices."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(384, 384) / 384**0.5)
        self.register_buffer("start", torch.randn(384, 384))

    def forward(self, count):
        h = self.start
        for _ in range(count):
            h = h @ self.weight
        return h.mean() if count else torch.zeros(())


class Memory(nn.Module):
    """One multiplication per element of something that fits into no cache."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("big", torch.randn(6_000_000))

    def forward(self, count):
        total = torch.zeros(())
        for _ in range(count):
            total = total + (self.big * self.scale).sum()
        return total * 1e-9


class Overhead(nn.Module):
    """Many operations on next to nothing."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(8))

    def forward(self, count):
        h = self.value
        for _ in range(count):
            h = h * 1.0001 + 0.0001
        return h.mean()


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.compute, self.memory, self.overhead = Compute(), Memory(), Overhead()
        self.counts = {"compute": 0, "memory": 0, "overhead": 0}

    def forward(self, x):
        parts = [getattr(self, name)(count) for name, count in self.counts.items() if count]
        return sum(parts) + 0.0 * x.mean() + 0.0 * self.overhead.value.sum()


def seconds_each(part, count=12):
    """Least CPU time of one repetition, forward and backward: others on the machine count for nothing."""
    best = float("inf")
    for _ in range(6):
        since = time.thread_time()
        part(count).backward()
        best = min(best, time.thread_time() - since)
    return best / count


def pairs(given):
    return {name: float(value) for name, value in (word.split("=") for word in given)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", action="append", default=[], metavar="KIND=SHARE")
    parser.add_argument("--each", action="append", default=[], metavar="KIND=SECONDS")
    parser.add_argument("--step", type=float, default=STEP_S, help="seconds")
    parser.add_argument("--calibrate", action="store_true", help="print seconds of one repetition by kind")
    options = parser.parse_args()
    shares, each = pairs(options.share), pairs(options.each)
    torch.manual_seed(0)
    model = Parts()
    if options.calibrate:
        print(json.dumps({name: seconds_each(getattr(model, name)) for name in model.counts}))
        return
    for name in model.counts:
        if shares.get(name):
            model.counts[name] = max(1, round(shares[name] * options.step / each[name]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Samples(shares.get("input", 0.0) * options.step / BATCH), batch_size=BATCH)
    pause_s = shares.get("sync", 0.0) * options.step
    while True:
        for x in loader:
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            if pause_s:
                time.sleep(pause_s)


main()
