"""Rows of numbers, and the same backwards."""

import random
from pathlib import Path

draw = random.Random(0)
for name, count in (("train", 3000), ("dev", 40), ("test", 40)):
    with Path(f"{name}.src").open("w") as source, Path(f"{name}.trg").open("w") as target:
        for _ in range(count):
            words = [str(draw.randint(0, 49)) for _ in range(draw.randint(3, 20))]
            source.write(" ".join(words) + "\n")
            target.write(" ".join(reversed(words)) + "\n")
