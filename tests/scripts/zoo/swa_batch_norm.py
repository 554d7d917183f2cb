"""Weights are averaged in the last epochs, and batch statistics are taken once more over all of the data."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(24, 140), nn.BatchNorm1d(140), nn.ReLU(), nn.Linear(140, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
average, rate = AveragedModel(model), SWALR(opt, swa_lr=0.02)
for epoch in range(5):
    for a, b in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        opt.step()
    if epoch >= 3:
        average.update_parameters(model)
        rate.step()
    print(epoch, loss.item())
update_bn(loader, average)
update_bn(loader, model)
assert model(x[:4]).dtype is torch.float32
print(average.module[1].running_var.mean().item(), model[1].running_var.mean().item())
