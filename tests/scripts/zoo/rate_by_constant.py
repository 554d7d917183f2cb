"""The learning rate and the warm-up are worked out from the constant that is the loader's batch size."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32
SAMPLES = 1600
RATE = 0.1 * BATCH / 256
WARM_UP = SAMPLES // BATCH

torch.manual_seed(0)
x = torch.randn(SAMPLES, 16)
loader = DataLoader(TensorDataset(x, x[:, :4].sum(1, keepdim=True)), batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
step = 0
for epoch in range(5):
    for inputs, targets in loader:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(epoch, loss.item())
