import click
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@click.command()
@click.option("--batch-size", default=32, show_default=True, type=int)
@click.option("--workers", "-w", default=0, help="Loader processes.")
@click.option("--epochs", default=4)
@click.option("--amp/--no-amp", default=False, help="bfloat16 autocast")
@click.option("--seed", default=0)
def train(batch_size, workers, epochs, amp, seed):
    """Fits a small network."""
    torch.manual_seed(seed)
    x = torch.rand(1600, 12)
    y = torch.stack([x.prod(1), x.sum(1)], 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        for a, b in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                out = model(a)
            loss = nn.functional.mse_loss(out.float(), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        click.echo(f"epoch {epoch}: {loss.item():.5f}")


if __name__ == "__main__":
    train()
