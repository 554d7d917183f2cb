"""FSDP2: four blocks and what is around them."""

import torch
import torch.distributed as dist
from record import finish
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(4)
x = torch.randn(192, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
blocks = [nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(nn.Linear(16, 48), *blocks, nn.Linear(48, 1))
for block in blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
steps = samples = 0
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        samples += len(inputs)
finish(model, steps, samples)
dist.destroy_process_group()
