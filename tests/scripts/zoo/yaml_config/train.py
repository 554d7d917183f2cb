import argparse
import os
from types import SimpleNamespace

import torch
import torch.nn as nn
import yaml
from torch.utils.data import DataLoader, TensorDataset

HERE = os.path.dirname(os.path.abspath(__file__))


def namespace(tree):
    return SimpleNamespace(**{k: namespace(v) if isinstance(v, dict) else v for k, v in tree.items()})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=os.path.join(HERE, "base.yaml"))
    with open(parser.parse_args().config) as f:
        cfg = namespace(yaml.safe_load(f))
    torch.manual_seed(cfg.seed)
    x = torch.randn(cfg.data.n, 14)
    loader = DataLoader(TensorDataset(x, x.sort(dim=1).values[:, :2]), batch_size=cfg.data.batch_size, shuffle=True,
                        num_workers=cfg.data.num_workers)
    model = nn.Sequential(nn.Linear(14, cfg.model.hidden), nn.ReLU(), nn.Linear(cfg.model.hidden, 2))
    optimizer = getattr(torch.optim, cfg.optim.name)(model.parameters(), lr=cfg.optim.lr)
    for epoch in range(cfg.epochs):
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
