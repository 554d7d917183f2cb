"""Fine-tuning in two stages: another head and another optimizer for the last epochs, then the weights are saved."""
import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 120), nn.GELU())
        self.head = nn.Linear(120, 2)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
x = torch.randn(1600, 24)
coarse, fine = (x[:, 0] > 0).long(), x[:, :5].argmax(1)
loader = DataLoader(TensorDataset(x, coarse, fine), batch_size=32, shuffle=True)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(5):
    if epoch == 3:
        model.head = nn.Linear(120, 5)
        opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for inputs, *labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels[epoch >= 3])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
saved = io.BytesIO()
torch.save(model.state_dict(), saved)
saved.seek(0)
shapes = {name: tuple(value.shape) for name, value in torch.load(saved).items()}
assert shapes["head.weight"] == (5, 120) and model(x[:4]).shape == (4, 5), shapes
print(shapes)
