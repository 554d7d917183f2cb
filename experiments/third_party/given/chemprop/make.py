"""300 small molecules put together from rings, chains and ends, with a number that follows their parts."""

import csv
import itertools
import random
from pathlib import Path

draw = random.Random(0)
heads, ends = ("c1ccccc1", "C1CCCCC1", "C", "c1ccncc1", "N"), ("O", "N", "F", "Cl", "C(=O)O", "C#N")
molecules = [f"{head}{'C' * n}{end}" for head, n, end in itertools.product(heads, range(1, 11), ends)]
with Path("molecules.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["smiles", "value"])
    for smiles in molecules:
        value = smiles.count("C") - 2 * smiles.count("O") + smiles.count("c") + draw.gauss(0, 0.2)
        rows.writerow([smiles, f"{value:.3f}"])
