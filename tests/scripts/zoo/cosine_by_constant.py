"""A warm-up and a cosine over a number of steps that two constants give."""
import math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32
STEPS = 5 * (1600 // BATCH)
WARM = STEPS // 10


def scale(step):
    if step < WARM:
        return (step + 1) / WARM
    return 0.5 * (1 + math.cos(math.pi * (step - WARM) / (STEPS - WARM)))


torch.manual_seed(0)
x = torch.randn(1600, 30)
loader = DataLoader(TensorDataset(x, x.norm(dim=1, keepdim=True)), batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(30, 150), nn.SiLU(), nn.Linear(150, 1))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, scale)
for epoch in range(5):
    for a, b in loader:
        loss = nn.functional.smooth_l1_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(epoch, sched.get_last_lr(), loss.item())
