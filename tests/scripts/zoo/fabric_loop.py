import lightning as L
import torch
import torch.nn.functional as F
from lightning.fabric.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def run(epochs=5, batch_size=32, lr=1e-3):
    fabric = L.Fabric(accelerator="cpu", devices=1, loggers=CSVLogger("logs"))
    fabric.launch()
    fabric.seed_everything(7)
    digits = load_digits()
    images = torch.from_numpy(digits.images[:1600]).float().unsqueeze(1) / 16
    data = TensorDataset(images, torch.from_numpy(digits.target[:1600]))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=batch_size, shuffle=True))
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model, optimizer = fabric.setup(model, optimizer)
    for epoch in range(epochs):
        model.train()
        for batch_idx, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            if batch_idx % 25 == 0:
                fabric.log("loss", loss.item())
        fabric.print(f"epoch {epoch}: {loss.item():.4f}")
        fabric.save("net.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    run()
