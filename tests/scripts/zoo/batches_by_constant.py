"""A pass takes as many batches as a constant says, from an iterator made anew for each."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

config = dict(batch_size=32, rows=1600, epochs=5)
config["batches"] = config["rows"] // config["batch_size"]

torch.manual_seed(0)
x = torch.randn(config["rows"], 24)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True).tanh()), batch_size=config["batch_size"], shuffle=True)
model = nn.Sequential(nn.Linear(24, 160), nn.ReLU(), nn.Linear(160, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(config["epochs"]):
    batches = iter(loader)
    for _ in range(config["batches"]):
        a, b = next(batches)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
