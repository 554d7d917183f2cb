"""The head is trained first; for the last passes the body joins by add_param_group, with a rate of its own."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1600, 24)
loader = DataLoader(TensorDataset(x, x[:, :4].sum(1, keepdim=True)), batch_size=32, shuffle=True)
body = nn.Sequential(nn.Linear(24, 100), nn.ReLU())
head = nn.Linear(100, 1)
body.requires_grad_(False)
model = nn.Sequential(body, head)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 3:
        body.requires_grad_(True)
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 1e-4})
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
