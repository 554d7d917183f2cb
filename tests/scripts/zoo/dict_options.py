"""Options are the entries of a dictionary: python dict_options.py --batch_size=64 --lr=0.01"""
import sys
from ast import literal_eval

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

defaults = dict(
    batch_size=8 * 4,
    epochs=4,
    lr=2e-3,
    num_workers=0,
    optimizer="Adam",
)
for arg in sys.argv[1:]:
    key, value = arg.lstrip("-").split("=", 1)
    if key not in defaults:
        sys.exit(f"unknown option {key}")
    try:
        defaults[key] = literal_eval(value)
    except (SyntaxError, ValueError):
        defaults[key] = value

torch.manual_seed(19)
x = torch.randn(1600, 17)
data = TensorDataset(x, x.cumsum(1)[:, ::6])
loader = DataLoader(data, defaults["batch_size"], shuffle=True, num_workers=defaults["num_workers"])
model = nn.Sequential(nn.Linear(17, 110), nn.ReLU(), nn.Linear(110, 3))
optimizer = getattr(torch.optim, defaults["optimizer"])(model.parameters(), lr=defaults["lr"])
for epoch in range(defaults["epochs"]):
    for inputs, target in loader:
        loss = nn.functional.smooth_l1_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
