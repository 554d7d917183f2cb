import mlflow
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

mlflow.set_tracking_uri("sqlite:///experiments.db")
mlflow.set_experiment("widths")

torch.manual_seed(0)
x = torch.randn(1600, 15)
loader = DataLoader(TensorDataset(x, x.max(1, keepdim=True).values), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(15, 180), nn.ReLU(), nn.Linear(180, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)

with mlflow.start_run(run_name="baseline"):
    mlflow.log_params({"lr": 1e-3, "batch_size": 32, "width": 180})
    for epoch in range(5):
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(xb), yb)
            loss.backward()
            opt.step()
        mlflow.log_metric("loss", loss.item(), step=epoch)
