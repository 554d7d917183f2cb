"""2000 rows: two numbers of two clusters, one that follows them, two discrete columns."""

import csv
import random
from pathlib import Path

draw = random.Random(0)
with Path("table.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["height", "weight", "score", "kind", "colour"])
    for _ in range(2000):
        kind = draw.choice(["long", "short"])
        height = draw.gauss(180 if kind == "long" else 120, 9)
        weight = height / 2 + draw.gauss(0, 4)
        score = 0.1 * height - 0.05 * weight + draw.random()
        rows.writerow([f"{height:.2f}", f"{weight:.2f}", f"{score:.3f}", kind, draw.choice("rgb")])
