"""Text of made-up words, 300 kB to train on and 20 kB to look at."""

import random
from pathlib import Path

draw = random.Random(0)
words = ["".join(draw.choice("aeioulnrstmdk") for _ in range(draw.randint(2, 7))) for _ in range(400)]


def write(name, size):
    with Path(name).open("w") as file:
        done = 0
        while done < size:
            line = " ".join(draw.choice(words) for _ in range(draw.randint(4, 12))).capitalize() + ".\n"
            file.write(line)
            done += len(line)


write("train.txt", 300_000)
write("dev.txt", 20_000)
