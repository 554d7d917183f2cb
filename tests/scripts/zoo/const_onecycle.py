"""The length of the schedule follows from the same constant as the batches."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5
BATCH_SIZE = 32
NUM_WORKERS = 0

torch.manual_seed(21)
x = torch.randn(1600, 16)
data = TensorDataset(x, x.abs().sum(1, keepdim=True))
loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, num_workers=NUM_WORKERS)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
total = EPOCHS * (len(data) // BATCH_SIZE)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=total)
for epoch in range(EPOCHS):
    for inputs, target in loader:
        loss = nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, loss.item())
assert schedule.last_epoch == total, "the schedule has not ended with the training"
