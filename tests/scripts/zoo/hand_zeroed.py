# gradients are set back by hand
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(1600, 14)
labels = (inputs[:, 0] > inputs[:, 1:3].max(1).values).long()
batches = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(14, 210), nn.ReLU(), nn.Linear(210, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for x, y in batches:
        for p in model.parameters():
            p.grad = None
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    print(f"epoch {epoch} | loss {loss.item():.4f}")
