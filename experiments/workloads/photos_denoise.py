"""Train a small convolutional denoiser on patches of the two photographs that come with scikit-learn.

    python photos_denoise.py --epochs 20 --batch-size 16

Every item opens and decodes its JPEG, scales it, crops a patch and adds noise, as one does when the
photographs do not fit into memory. Scale, position and noise of a patch follow from its index, so an
epoch always holds the same noisy patches, in another order.
"""

import argparse
import io
from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

PHOTOS = ("china.jpg", "flower.jpg")


class NoisyPatches(Dataset):
    """Pairs (noisy patch, clean patch), 3 x size x size, values in [0, 1]."""

    def __init__(self, num_patches, size=48, sigma=0.1):
        self.files = [files("sklearn.datasets.images").joinpath(name).read_bytes() for name in PHOTOS]
        self.num_patches = num_patches
        self.size = size
        self.sigma = sigma

    def __len__(self):
        return self.num_patches

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        photo = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        zoom = 0.6 + 0.4 * torch.rand(1, generator=draw).item()
        photo = photo.resize(
            (round(zoom * photo.width), round(zoom * photo.height)), Image.Resampling.BILINEAR
        )
        left = int(torch.randint(photo.width - self.size + 1, (1,), generator=draw))
        top = int(torch.randint(photo.height - self.size + 1, (1,), generator=draw))
        patch = photo.crop((left, top, left + self.size, top + self.size))
        clean = torch.from_numpy(np.array(patch)).permute(2, 0, 1).float() / 255
        noisy = clean + self.sigma * torch.randn(clean.shape, generator=draw)
        return noisy, clean


class Denoiser(nn.Module):
    """Predicts the noise and subtracts it (Zhang et al. 2017, DnCNN, without batch norm)."""

    def __init__(self, width=32, depth=3):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, 3, 3, padding=1)]
        self.noise = nn.Sequential(*layers)

    def forward(self, x):
        return x - self.noise(x)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(NoisyPatches(8000), batch_size=args.batch_size, shuffle=True)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()

    for epoch in range(args.epochs):
        for i, (noisy, clean) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(noisy), clean)
            loss.backward()
            optimizer.step()
            if i % 50 == 0:
                print(f"epoch {epoch} step {i}/{len(loader)} loss {loss.item():.5f}", flush=True)
        torch.save(model.state_dict(), "denoiser.pt")


if __name__ == "__main__":
    main()
