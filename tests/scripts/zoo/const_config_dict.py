"""Settings in a dictionary; batches are slices of a shuffled tensor."""
import torch
from torch import nn

CONFIG = {
    "model": {"width": 96, "depth": 2},
    "train": {"batch_size": 32, "epochs": 4, "lr": 1e-3},
    "seed": 11,
}


def batches(x, y, size):
    order = torch.randperm(len(x))
    for start in range(0, len(x) - size + 1, size):
        rows = order[start:start + size]
        yield x[rows], y[rows]


def build(width, depth):
    layers = [nn.Linear(20, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def main(config):
    torch.manual_seed(config["seed"])
    x = torch.randn(1600, 20)
    y = x[:, :4].prod(1, keepdim=True)
    model = build(**config["model"])
    settings = config["train"]
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    for epoch in range(settings["epochs"]):
        for inputs, target in batches(x, y, settings["batch_size"]):
            loss = nn.functional.mse_loss(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main(CONFIG)
