"""A trial that floods its output. Arguments: what with, and how many MiB."""

import os
import sys

KIND, MIB = sys.argv[1], int(sys.argv[2])
BLOCK = {
    "no text": bytes(range(128, 256)) * 8192,
    "one line": b"x" * (1 << 20),
    "zeros": bytes(1 << 20),
    "colours": (b"\x1b[31mred\x1b[0m\x1b[2J\x07" * 60_000)[: 1 << 20],
    "long lines": b"y" * ((1 << 20) - 1) + b"\n",
    "both streams": b"\xff\xfe line\r\n" * 104_857,
}[KIND]

written = 0
while written < MIB << 20:
    stream = 2 if KIND == "both streams" and (written >> 20) % 2 else 1
    written += os.write(stream, BLOCK)
os.write(2, b"\xc3\x28 the last word")
os._exit(3)
