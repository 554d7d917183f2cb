"""DistributedDataParallel that exchanges gradients in each of three passes of a step."""

import torch
import torch.distributed as dist
from record import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(3)
x = torch.randn(320, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
steps = samples = 0
for _ in range(3):
    for place, (inputs, targets) in enumerate(loader):
        (nn.functional.mse_loss(model(inputs), targets) / 3).backward()
        samples += len(inputs)
        if place % 3 == 2 or place == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
finish(model, steps, samples)
dist.destroy_process_group()
