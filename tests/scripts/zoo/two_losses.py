"""A shared trunk and two tasks; each loss has a backward pass of its own."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Multitask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 128), nn.ReLU())
        self.cls, self.reg = nn.Linear(128, 3), nn.Linear(128, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.reg(h)


def main():
    torch.manual_seed(14)
    x = torch.randn(1280, 20)
    data = TensorDataset(x, x[:, :3].argmax(1), x.norm(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = Multitask()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        for inputs, label, size in loader:
            logits, value = model(inputs)
            optimizer.zero_grad()
            first = nn.functional.cross_entropy(logits, label)
            first.backward(retain_graph=True)
            second = nn.functional.mse_loss(value, size)
            second.backward()
            optimizer.step()
        print(f"epoch {epoch} classes {first.item():.3f} size {second.item():.3f}")


if __name__ == "__main__":
    main()
