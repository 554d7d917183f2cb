"""A small training by PyTorch, which goes on for longer than any trial looks."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(1000):
    for inputs, targets in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    torch.save(model.state_dict(), "ckpt.pt")
