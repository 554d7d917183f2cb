import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

ACCUM = 4
torch.manual_seed(6)
X = torch.randn(2048, 50)
y = (X[:, :10].pow(2).sum(1) > 10).long()
dl = DataLoader(TensorDataset(X, y), batch_size=16, shuffle=True)
clf = nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 2))
opt = optim.Adam(clf.parameters(), lr=1e-3)

opt.zero_grad()
for ep in range(8):
    for i, (xb, yb) in enumerate(dl):
        loss = nn.functional.cross_entropy(clf(xb), yb) / ACCUM
        loss.backward()
        if i % ACCUM == ACCUM - 1:
            opt.step()
            opt.zero_grad()
    print(ep, loss.item() * ACCUM)
