"""400 contigs of 8 genomes with bases in different shares, and how often each was seen in 4 samples."""

import random
from pathlib import Path

draw = random.Random(0)
genomes = [
    ([draw.uniform(0.5, 2) for _ in "ACGT"], [draw.uniform(1, 20) for _ in range(4)]) for _ in range(8)
]
with Path("contigs.fna").open("w") as fasta, Path("abundance.tsv").open("w") as table:
    table.write("contigname\ts1\ts2\ts3\ts4\n")
    for number in range(400):
        shares, seen = genomes[number % 8]
        name = f"S1C{number}"
        bases = "".join(draw.choices("ACGT", shares, k=draw.randint(2000, 3000)))
        fasta.write(f">{name}\n{bases}\n")
        table.write("\t".join([name, *(f"{value * draw.uniform(0.8, 1.2):.3f}" for value in seen)]) + "\n")
