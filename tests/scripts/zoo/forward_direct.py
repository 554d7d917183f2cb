import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Estimator(nn.Module):
    """Callers go to `forward`, as in old code."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(18, 150), nn.Linear(150, 1)

    def forward(self, x):
        return self.fc2(nn.functional.relu(self.fc1(x)))

    def loss(self, x, y):
        return nn.functional.mse_loss(self.forward(x), y)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(1600, 18)
    loader = DataLoader(TensorDataset(x, x.median(1, keepdim=True).values), batch_size=32, shuffle=True)
    model = Estimator()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        for a, b in loader:
            optimizer.zero_grad()
            loss = model.loss(a, b)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item())
