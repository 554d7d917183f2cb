import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(1600, 32), torch.randn(1600, 1))


class Gated(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(dim, 128), nn.Linear(dim, 128), nn.Linear(128, 1)

    def forward(self, x):
        return self.o(torch.sigmoid(self.a(x)) * torch.tanh(self.b(x)))


model = torch.compile(Gated(32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
start = time.perf_counter()
for epoch in range(6):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"{epoch}: {loss.item():.4f} after {time.perf_counter() - start:.1f} s")
