"""Pictures that are made, not downloaded: gratings whose direction is their class."""

import math

import torch
from torch.utils.data import Dataset


def gratings(count, classes, size):
    """`count` RGB pictures as bytes, and their classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    angle = labels * (math.pi / classes)
    phase = 2 * math.pi * torch.rand(count, 3, generator=generator)
    line = torch.linspace(-1, 1, size)
    pictures = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for n in range(count):
        wave = 24 * (torch.cos(angle[n]) * line[:, None] + torch.sin(angle[n]) * line[None, :])
        picture = torch.sin(wave[None] + phase[n, :, None, None])
        pictures[n] = (96 * picture + 128).clamp(0, 255).to(torch.uint8)
    return pictures, labels


class Pictures(Dataset):
    """One of the pictures, cropped, turned over and with its colours moved, anew at every look."""

    def __init__(self, count, classes, size, stored, augment=True):
        self.pictures, self.labels = gratings(min(count, 512), classes, stored)
        self.count = count
        self.size = size
        self.augment = augment

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        picture = self.pictures[index % len(self.pictures)]
        room = picture.shape[1] - self.size
        top = left = room // 2
        if self.augment:
            top, left = torch.randint(0, room + 1, (2,)).tolist()
        picture = picture[:, top : top + self.size, left : left + self.size].float() / 255
        if self.augment:
            if torch.rand(()) < 0.5:
                picture = picture.flip(2)
            picture = picture * (0.8 + 0.4 * torch.rand(3, 1, 1)) + 0.05 * torch.randn(3, 1, 1)
        return (picture - 0.5) / 0.25, self.labels[index % len(self.labels)]
