"""DeepSpeed's engine in ZeRO stage 1."""

import deepspeed
import torch
import torch.distributed as dist
from record import finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# An extension in C++ that is compiled first, and that gloo does not need.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(8)
x = torch.randn(192, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
net = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 1))
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(net.parameters(), lr=2e-3),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
    },
)
steps = samples = 0
for _ in range(2):
    for inputs, targets in loader:
        engine.backward(nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        steps += 1
        samples += len(inputs)
finish(net, steps, samples)
dist.destroy_process_group()
