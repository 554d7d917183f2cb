"""Half of the weights are pruned before the last epochs, and the masks are made permanent before saving."""
import io

import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
loader = DataLoader(TensorDataset(x, x[:, :4].sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(24, 120), nn.ReLU(), nn.Linear(120, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 3:
        prune.l1_unstructured(model[0], "weight", amount=0.5)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
prune.remove(model[0], "weight")
saved = io.BytesIO()
torch.save(model.state_dict(), saved)
saved.seek(0)
kept = torch.load(saved)
assert list(kept) == ["0.bias", "0.weight", "2.weight", "2.bias"], list(kept)
share = (kept["0.weight"] == 0).float().mean().item()
assert abs(share - 0.5) < 0.01, share
print("zeros", share)
