"""Lookahead around another optimizer."""
from collections import defaultdict

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset


class Lookahead(Optimizer):
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha = base, k, alpha
        super().__init__([p for g in base.param_groups for p in g["params"]], dict(lr=base.param_groups[0]["lr"]))
        self.param_groups = base.param_groups
        self.slow = defaultdict(dict)
        self.counter = 0

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.slow[p].setdefault("w", p.detach().clone())
                    slow.add_(p.detach() - slow, alpha=self.alpha)
                    p.data.copy_(slow)
        return loss


torch.manual_seed(0)
x = torch.randn(1600, 20)
loader = DataLoader(TensorDataset(x, x.std(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(20, 170), nn.ReLU(), nn.Linear(170, 1))
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-3))
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
