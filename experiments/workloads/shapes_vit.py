"""Train a small vision transformer to tell shapes apart that are drawn when it starts.

    python shapes_vit.py --epochs 30 --batch-size 32

Pictures of 32x32: one of six shapes, anywhere, of any size, turn and colour, on another colour, under noise.
The network is ViT (Dosovitskiy et al. 2020), made small: patches of 4x4, learned positions, pre-norm blocks,
the mean of all patches in place of a token for the class. Accuracy on held-out pictures is printed.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SHAPES = 6
SIDE = 32


def draw(count, seed):
    """Pictures (count x 3 x 32 x 32) and which shape each shows."""
    chance = torch.Generator().manual_seed(seed)

    def between(low, high, *shape):
        return low + (high - low) * torch.rand(count, *shape, generator=chance)

    shapes = torch.randint(SHAPES, (count,), generator=chance)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    turn, size = between(0, 6.28, 1, 1), between(0.25, 0.5, 1, 1)
    x, y = x - between(-0.4, 0.4, 1, 1), y - between(-0.4, 0.4, 1, 1)
    x, y = (x * turn.cos() + y * turn.sin()) / size, (y * turn.cos() - x * turn.sin()) / size
    far, radius = torch.maximum(x.abs(), y.abs()), torch.hypot(x, y)
    inside = [
        radius < 1,
        far < 0.9,
        (far < 1) & (torch.minimum(x.abs(), y.abs()) < 0.3),
        (y > -0.7) & (y < 0.9 - 1.8 * x.abs()),
        (radius < 1) & (radius > 0.55),
        (far < 1) & ((y * 2.5).floor().remainder(2) == 0),
    ]
    mask = torch.stack(inside, dim=1)[torch.arange(count), shapes][:, None].float()
    ground, colour = between(0, 1, 3, 1, 1), between(0, 1, 3, 1, 1)
    pictures = ground + mask * (colour - ground)
    return pictures + 0.1 * torch.randn(pictures.shape, generator=chance), shapes


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    def __init__(self, width, depth, heads, patch=4):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SHAPES)

    def forward(self, pictures):
        patches = F.unfold(pictures, self.patch, stride=self.patch).transpose(1, 2)
        x = self.blocks(self.embed(patches) + self.places)
        return self.head(self.norm(x).mean(dim=1))


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--pictures", type=int, default=6016)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = DataLoader(
        TensorDataset(*draw(args.pictures, seed=1)), batch_size=args.batch_size, shuffle=True
    )
    test_loader = DataLoader(TensorDataset(*draw(args.pictures // 8, seed=2)), batch_size=128)

    model = SmallViT(args.width, args.depth, args.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    for epoch in range(args.epochs):
        total = 0.0
        for pictures, shapes in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pictures.to(device)), shapes.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        held_out = accuracy(model, test_loader, device)
        mean = total / len(train_loader)
        print(f"epoch {epoch} loss {mean:.4f} held-out accuracy {held_out:.3f}", flush=True)
        torch.save(model.state_dict(), "shapes.pt")


if __name__ == "__main__":
    main()
