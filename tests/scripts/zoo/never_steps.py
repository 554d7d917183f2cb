"""Only looks at a model: no training at all."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
loader = DataLoader(TensorDataset(torch.randn(640, 16)), batch_size=32)
counts = torch.zeros(2)
with torch.no_grad():
    for (x,) in loader:
        counts += torch.bincount(model(x).argmax(1), minlength=2)
print(counts.tolist())
