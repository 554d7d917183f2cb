"""Train a small convolutional network on pictures that come one by one from slow storage.

    python input_cnn.py --batch-size 32 --num-workers 0

Reading a picture takes two milliseconds in which the processor has nothing to do; it is then blurred, flipped
and cropped at random, and normalised. The pictures are made up: a class is a grating of its own, under noise.
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

NUM_PICTURES, CLASSES, SIDE = 8192, 10, 36
CROP = 32
READ_S = 0.002
BATCH_SIZE = 32


class Pictures(Dataset):
    """Pairs (float tensor of 3 x 32 x 32, class)."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (NUM_PICTURES,), generator=generator)
        across = torch.arange(SIDE, dtype=torch.float32)
        angles = torch.arange(CLASSES) * math.pi / CLASSES
        waves = torch.sin(
            across[None, None, :] * torch.cos(angles)[:, None, None]
            + across[None, :, None] * torch.sin(angles)[:, None, None]
        )
        noise = torch.randint(128, (NUM_PICTURES, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
        self.pictures = noise + (60 + 60 * waves[self.labels]).to(torch.uint8)[:, None]
        taps = torch.exp(-(torch.arange(-2.0, 3.0) ** 2) / 2)
        taps = taps / taps.sum()
        self.blur = (taps[:, None] * taps[None, :]).expand(3, 1, 5, 5)

    def __len__(self):
        return NUM_PICTURES

    def __getitem__(self, index):
        time.sleep(READ_S)
        picture = self.pictures[index].float() / 255
        picture = F.conv2d(F.pad(picture[None], (2, 2, 2, 2), mode="reflect"), self.blur, groups=3)[0]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        picture = picture[:, top : top + CROP, left : left + CROP]
        return (picture - picture.mean()) / (picture.std() + 1e-3), self.labels[index]


def block(width_in, width_out):
    convolution = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width_out), nn.ReLU(), nn.MaxPool2d(2))


def make_dataset():
    return Pictures()


def make_model():
    return nn.Sequential(
        block(3, 24),
        block(24, 40),
        block(40, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, batch):
    pictures, labels = batch
    return F.cross_entropy(model(pictures), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--prefetch-factor", type=int, default=None)
    parser.add_argument("--persistent-workers", action="store_true")
    parser.add_argument("--threads", type=int, default=None, help="of an operator")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    loader = DataLoader(
        make_dataset(),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.num_workers,
        prefetch_factor=args.prefetch_factor,
        persistent_workers=args.persistent_workers,
    )
    model = make_model()
    optimizer = make_optimizer(model)
    trained = torch.compile(model) if args.compile else model
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss = loss_of(trained, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
