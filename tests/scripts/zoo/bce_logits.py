"""Several labels per example, from the logits."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class MultiLabel(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU())
        self.head = nn.Linear(160, n_out)

    def forward(self, x):
        return self.head(self.body(x))


def main(epochs=6, batch_size=32, lr=1e-3):
    torch.manual_seed(17)
    x = torch.randn(1600, 40)
    y = ((x @ torch.randn(40, 7)) > 1.0).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    net = MultiLabel(40, 7)
    optim = torch.optim.Adam(net.parameters(), lr=lr)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        losses = []
        for inputs, labels in loader:
            optim.zero_grad()
            loss = loss_fn(net(inputs), labels)
            loss.backward()
            optim.step()
            losses.append(loss.detach())
        print(epoch, torch.stack(losses).mean().item())


if __name__ == "__main__":
    main()
