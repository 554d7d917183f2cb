"""Twelve grey pictures with bright discs, and their masks, as PNG files."""

import random
import struct
import zlib
from pathlib import Path

SIZE = 96


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, rows):
    """Grey, 16 bits per pixel."""
    lines = b"".join(b"\0" + struct.pack(f">{SIZE}H", *row) for row in rows)
    head = struct.pack(">IIBBBBB", SIZE, SIZE, 16, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


draw = random.Random(0)
folder = Path("images")
folder.mkdir()
for number in range(12):
    image = [[draw.randint(500, 3000) for _ in range(SIZE)] for _ in range(SIZE)]
    masks = [[0] * SIZE for _ in range(SIZE)]
    for label, (y, x) in enumerate(((20, 20), (20, 68), (48, 44), (74, 22), (74, 72)), start=1):
        radius = draw.randint(7, 10)
        for i in range(y - radius, y + radius + 1):
            for j in range(x - radius, x + radius + 1):
                if (i - y) ** 2 + (j - x) ** 2 <= radius**2:
                    masks[i][j] = label
                    image[i][j] = draw.randint(20_000, 40_000)
    write(folder / f"cells{number:02d}.png", image)
    write(folder / f"cells{number:02d}_masks.png", masks)
