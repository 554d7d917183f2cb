"""One constant is the size of both loaders and sets the length of the schedule."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 32
EPOCHS = 5

torch.manual_seed(0)
x = torch.randn(2000, 16)
y = x.abs().sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:1600], y[:1600]), batch_size=BATCH_SIZE, shuffle=True)
check = DataLoader(TensorDataset(x[1600:], y[1600:]), batch_size=BATCH_SIZE)
steps = EPOCHS * -(-1600 // BATCH_SIZE)
net = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: max(0.0, 1 - step / steps))
for epoch in range(EPOCHS):
    for inputs, target in train:
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), target)
        loss.backward()
        opt.step()
        warm.step()
    with torch.no_grad():
        wrong = sum(nn.functional.mse_loss(net(a), b, reduction="sum").item() for a, b in check) / 400
    print(epoch, wrong, warm.get_last_lr())
