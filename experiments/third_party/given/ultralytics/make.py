"""Twelve pictures of 64 x 64 with one bright square each, and where it is."""

import random
import struct
import zlib
from pathlib import Path

SIZE = 64


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, rows):
    """Red, green and blue, 8 bits each."""
    lines = b"".join(b"\0" + bytes(value for value in row for _ in range(3)) for row in rows)
    head = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


draw = random.Random(0)
for part in ("train", "val"):
    images, labels = Path(f"dataset/images/{part}"), Path(f"dataset/labels/{part}")
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for number in range(12):
        rows = [[draw.randint(0, 90) for _ in range(SIZE)] for _ in range(SIZE)]
        side = draw.randint(12, 24)
        y, x = draw.randint(0, SIZE - side), draw.randint(0, SIZE - side)
        for i in range(y, y + side):
            rows[i][x : x + side] = [draw.randint(180, 255) for _ in range(side)]
        write(images / f"{number:02d}.png", rows)
        box = [(x + side / 2) / SIZE, (y + side / 2) / SIZE, side / SIZE, side / SIZE]
        (labels / f"{number:02d}.txt").write_text("0 " + " ".join(f"{value:.4f}" for value in box) + "\n")
data = {"path": Path("dataset").absolute(), "train": "images/train", "val": "images/val"}
lines = [*(f"{key}: {value}" for key, value in data.items()), "names: {0: square}"]
Path("data.yaml").write_text("\n".join(lines) + "\n")
