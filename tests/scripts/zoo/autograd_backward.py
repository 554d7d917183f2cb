import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 12)
loader = DataLoader(TensorDataset(x, x.logsumexp(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(12, 200), nn.Softplus(), nn.Linear(200, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for a, b in loader:
        out = model(a)
        data_term = nn.functional.mse_loss(out, b)
        penalty = 1e-3 * out.abs().mean()
        optimizer.zero_grad()
        torch.autograd.backward([data_term, penalty])
        optimizer.step()
    print(epoch, data_term.item(), penalty.item())
