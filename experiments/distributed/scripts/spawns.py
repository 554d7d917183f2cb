"""Starts its processes by itself, with torch.multiprocessing.spawn."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from record import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = int(os.environ.get("SPAWNED", "2"))


def train(rank, port):
    """Train as one of `RANKS` processes."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    torch.manual_seed(9)
    x = torch.randn(192, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
    net = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 1))
    model = DistributedDataParallel(net, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    steps = samples = 0
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            steps += 1
            samples += len(inputs)
    finish(model, steps, samples)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(29000 + os.getpid() % 2000,), nprocs=RANKS)
