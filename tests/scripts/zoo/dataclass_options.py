"""Options are the fields of a dataclass, set by name: python dataclass_options.py --batch_size=10"""
import sys
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    batch_size: int = 20
    steps: int = 160
    lr: float = 1e-3
    width: int = 84
    seed: int = 23


cfg = Config()
for word in sys.argv[1:]:
    name, _, text = word.removeprefix("--").partition("=")
    kind = type(getattr(cfg, name))
    setattr(cfg, name, kind(text))

torch.manual_seed(cfg.seed)
model = nn.Sequential(nn.Linear(13, cfg.width), nn.SiLU(), nn.Linear(cfg.width, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
for step in range(cfg.steps):
    x = torch.randn(cfg.batch_size, 13)
    loss = (model(x) - x.square().mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
