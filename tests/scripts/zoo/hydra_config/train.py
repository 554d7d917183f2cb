"""Settings in groups of files; any of them may be given as a.b=value."""
from pathlib import Path

import hydra
import torch
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    torch.manual_seed(cfg.seed)
    low, high = map(float, Path(to_absolute_path(Path(__file__).parent / cfg.table)).read_text().split())
    x = torch.rand(1600, 12) * (high - low) + low
    data = TensorDataset(x, x.log().mean(1, keepdim=True))
    loader = DataLoader(data, batch_size=cfg.batch_size, shuffle=True, num_workers=cfg.num_workers)
    model = nn.Sequential(nn.Linear(12, cfg.model.width), nn.ReLU(), nn.Linear(cfg.model.width, 1))
    optimizer = getattr(torch.optim, cfg.optimizer.name)(model.parameters(), lr=cfg.optimizer.lr)
    criterion = nn.MSELoss()
    for epoch in range(cfg.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")
    with open("loss.txt", "w") as file:
        file.write(f"{loss.item():.4f}\n")


if __name__ == "__main__":
    main()
