import torch
from settings import Settings
from torch import nn

cfg = Settings()
torch.manual_seed(cfg.seed)
x = torch.rand(1600, 9)
y = (x.sum(1) > 4.5).long()
steps_per_epoch = len(x) // cfg.batch_size
model = nn.Sequential(nn.Linear(9, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=cfg.epochs * steps_per_epoch)

for epoch in range(cfg.epochs):
    order = torch.randperm(len(x))
    for step in range(steps_per_epoch):
        rows = order[step * cfg.batch_size:(step + 1) * cfg.batch_size]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, loss.item(), schedule.get_last_lr())
