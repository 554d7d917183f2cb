"""Fits a physical law, where single precision would not do."""
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


class PINN(torch.nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, width), torch.nn.Linear(width, width)])
        self.out = torch.nn.Linear(width, 1)

    def forward(self, z):
        for layer in self.layers:
            z = torch.tanh(layer(z))
        return self.out(z)


def train(iterations=5, batch=32):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.uniform(-1, 1, (1600, 2)))
    u = torch.exp(-z[:, :1] ** 2) * torch.sin(np.pi * z[:, 1:])
    points = DataLoader(TensorDataset(z, u), batch_size=batch, shuffle=True)
    net = PINN()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for it in range(iterations):
        for zb, ub in points:
            opt.zero_grad()
            mse = torch.mean((net(zb) - ub) ** 2)
            mse.backward()
            opt.step()
        print(f"It {it}: {mse.item():.3e}")


if __name__ == "__main__":
    train()
