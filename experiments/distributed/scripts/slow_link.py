"""DDP over a link that a communication hook makes slow: each exchange takes a time, and each byte as well.

``--delay-ms 0 --ns-per-byte 0`` is the fast link. The time is added before the exchange, on every rank.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--delay-ms", type=float, default=0.0)
parser.add_argument("--ns-per-byte", type=float, default=0.0)
parser.add_argument("--epochs", type=int, default=100000)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.randn(4096, 256)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=3))
layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(256, 512), *layers, nn.Linear(512, 1)), bucket_cap_mb=1
)


def link(state, bucket):
    """Exchange a bucket after the time that the link takes for it."""
    sent = bucket.buffer().numel() * bucket.buffer().element_size()
    if args.delay_ms or args.ns_per_byte:
        time.sleep(args.delay_ms / 1e3 + sent * args.ns_per_byte / 1e9)
    return allreduce_hook(state, bucket)


model.register_comm_hook(None, link)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(args.epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
