"""Traces and exports the model once it is trained, and wants to see float32 in both."""
import io
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 160), nn.Linear(160, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


torch.manual_seed(0)
x = torch.randn(1600, 20)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(5):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())

model.eval()
traced = torch.jit.trace(model, x[:8])
exported = torch.export.export(model, (x[:8],)).module()
for made in (traced, exported):
    assert made(x[:8]).dtype is torch.float32
assert "autocast" not in str(traced.graph) and "16" not in str(exported.graph)
torch.jit.save(traced, io.BytesIO())
saved = io.BytesIO()
torch.save(model.state_dict(), saved)
saved.seek(0)
assert list(torch.load(saved)) == ["a.weight", "a.bias", "b.weight", "b.bias"]
print("exported")
