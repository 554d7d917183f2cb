import torch
import torch.nn as nn
import wandb
from torch.utils.data import DataLoader, TensorDataset

config = {"batch_size": 32, "lr": 1e-3, "epochs": 5}
run = wandb.init(project="curves", config=config, mode="offline")
torch.manual_seed(0)
x = torch.randn(1600, 15)
train = DataLoader(TensorDataset(x, x.min(1, keepdim=True).values), batch_size=config["batch_size"], shuffle=True)
model = nn.Sequential(nn.Linear(15, 180), nn.ReLU(), nn.Linear(180, 1))
wandb.watch(model, log_freq=50)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
for epoch in range(config["epochs"]):
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        run.log({"loss": loss.item()})
run.finish()
