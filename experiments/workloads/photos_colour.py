"""Train a small convolutional network to give the two photographs that come with scikit-learn their colours.

    python photos_colour.py --epochs 15 --batch-size 8 --grad-accum 4

It sees squares in grey and says how red and how blue they are. Blocks are those of ConvNeXt V2 (Woo et al.
2023), narrow, at the full resolution: little arithmetic on large maps. What lies to the right is held out.
"""

import argparse
import io
import math
from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PHOTOS = ("china.jpg", "flower.jpg")
TRAIN_LEFT, TEST_LEFT = range(0, 432, 12), range(480, 593, 28)
TRAIN_TOP, TEST_TOP = range(0, 379, 12), range(0, 379, 31)


class Squares(Dataset):
    """Pairs (brightness, red and blue less brightness), 1 and 2 x size x size."""

    def __init__(self, lefts, tops, size):
        data = [files("sklearn.datasets.images").joinpath(name).read_bytes() for name in PHOTOS]
        photos = [np.array(Image.open(io.BytesIO(photo)).convert("RGB")) for photo in data]
        self.photos = [torch.from_numpy(photo).permute(2, 0, 1).float() / 255 for photo in photos]
        self.places = [(n, left, top) for n in range(len(photos)) for left in lefts for top in tops]
        self.size = size

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        photo, left, top = self.places[index]
        square = self.photos[photo][:, top : top + self.size, left : left + self.size]
        grey = square.mean(0, keepdim=True)
        return grey, square[[0, 2]] - grey


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.spread = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.up = nn.Conv2d(width, 4 * width, 1)
        self.gain = nn.Parameter(torch.zeros(1, 4 * width, 1, 1))
        self.shift = nn.Parameter(torch.zeros(1, 4 * width, 1, 1))
        self.down = nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        y = F.gelu(self.up(self.norm(self.spread(x))))
        strength = (y.pow(2).mean(dim=(2, 3), keepdim=True) + 1e-6).sqrt()
        y = y + self.gain * (y * (strength / strength.mean(dim=1, keepdim=True))) + self.shift
        return x + self.down(y)


class Colours(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, grey):
        return self.head(self.blocks(self.stem(grey)))


@torch.no_grad()
def error(model, loader, device):
    """Root of the mean squared difference, in shades of 256."""
    model.eval()
    squares = [F.mse_loss(model(grey.to(device)), colours.to(device)).item() for grey, colours in loader]
    model.train()
    return 256 * math.sqrt(sum(squares) / len(squares))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--grad-accum", type=int, default=4, help="batches per step of the optimizer")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--size", type=int, default=48, help="pixels of a square's side")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = Squares(TRAIN_LEFT, TRAIN_TOP, args.size)
    test = Squares(TEST_LEFT, TEST_TOP, args.size)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, batch_size=26)

    model = Colours(args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        total = 0.0
        for i, (grey, colours) in enumerate(train_loader):
            loss = F.mse_loss(model(grey.to(device)), colours.to(device))
            (loss / args.grad_accum).backward()
            total += loss.item()
            if (i + 1) % args.grad_accum == 0:
                optimizer.step()
                optimizer.zero_grad()
        held_out = error(model, test_loader, device)
        print(f"epoch {epoch} loss {total / len(train_loader):.5f} held-out error {held_out:.2f}", flush=True)
        torch.save(model.state_dict(), "colours.pt")


if __name__ == "__main__":
    main()
