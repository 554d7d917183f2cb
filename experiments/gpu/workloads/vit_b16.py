"""Train a vision transformer ViT-B/16, in plain PyTorch, on pictures that are made as they are read.

    python vit_b16.py --epochs 2 --batch-size 64 --workers 4

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), with a mean over the patches for a class token.
"""

import argparse

import torch
from images import Pictures
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Block(nn.Module):
    def __init__(self, width, heads, drop):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, patches, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (p.view(batch, patches, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, patches, width)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, size, patch, layers, heads, width, classes, drop=0.1):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=64_000, help="pictures in an epoch")
    parser.add_argument("--small", action="store_true", help="a model and pictures for a try on a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, stored, classes = (32, 40, 10) if args.small else (224, 256, 100)
    loader = DataLoader(
        Pictures(args.samples, classes, size, stored),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
    )
    model = ViT(32, 8, 2, 2, 32, classes) if args.small else ViT(224, 16, 12, 12, 768, classes)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=device)
        for step, (images, labels) in enumerate(loader):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if step % 50 == 49:
                print(f"epoch {epoch} step {step} loss {total.item() / 50:.4f}", flush=True)
                total.zero_()


if __name__ == "__main__":
    main()
