"""DistributedDataParallel with BatchNorm, and a search for unused parameters of which there are none."""

import torch
import torch.distributed as dist
from record import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(2)
x = torch.randn(192, 3, 8, 8)
data = TensorDataset(x, torch.randint(0, 4, (192,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
net = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
)
model = DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
steps = samples = 0
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        steps += 1
        samples += len(inputs)
finish(model, steps, samples)
dist.destroy_process_group()
