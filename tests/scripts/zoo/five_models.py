"""An ensemble: five networks, one optimizer, the mean of their losses."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_MODELS = 5


def member():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))


torch.manual_seed(0)
ensemble = [member() for _ in range(N_MODELS)]
params = [p for m in ensemble for p in m.parameters()]
optimizer = torch.optim.Adam(params, lr=2e-3)
x = torch.randn(1280, 16)
train = DataLoader(TensorDataset(x, x.square().sum(1, keepdim=True)), batch_size=32, shuffle=True)
for epoch in range(5):
    for xb, yb in train:
        optimizer.zero_grad()
        loss = sum(nn.functional.mse_loss(m(xb), yb) for m in ensemble) / N_MODELS
        loss.backward()
        optimizer.step()
    spread = torch.stack([m(x[:64]).detach() for m in ensemble]).std(0).mean()
    print(f"epoch {epoch} loss {loss.item():.3f} spread {spread:.3f}")
