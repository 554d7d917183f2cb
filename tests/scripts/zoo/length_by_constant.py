"""The length of the schedule is worked out from a settings object, not from the loader."""
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    batch: int = 32
    rows: int = 1600
    passes: int = 5
    lr: float = 2e-3


def main(s=Settings()):
    torch.manual_seed(0)
    x = torch.randn(s.rows, 24)
    y = (x[:, :4].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=s.batch, shuffle=True, drop_last=True)
    total = s.rows // s.batch * s.passes
    model = nn.Sequential(nn.Linear(24, 160), nn.GELU(), nn.Linear(160, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=s.lr,
        total_steps=total,
    )
    for _ in range(s.passes):
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"{scheduler.get_last_lr()[0]:.2e} {loss.item():.4f}")


main()
