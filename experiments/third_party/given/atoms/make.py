"""Boxes of two molecules of three atoms, held together by springs: extended XYZ with energies and forces."""

import math
import random
from pathlib import Path

BOX = 8.0
BONDS = ((0, 1, 0.97), (0, 2, 0.97), (1, 2, 1.53))
draw = random.Random(0)


def molecule():
    """Positions near rest, the energy of the springs, and the forces."""
    origin = [draw.uniform(2, BOX - 2) for _ in range(3)]
    rest = ((0.0, 0.0, 0.0), (0.97, 0.0, 0.0), (-0.24, 0.94, 0.0))
    atoms = [[o + r + draw.gauss(0, 0.08) for o, r in zip(origin, place, strict=True)] for place in rest]
    energy, forces = 0.0, [[0.0] * 3 for _ in atoms]
    for i, j, length in BONDS:
        apart = [b - a for a, b in zip(atoms[i], atoms[j], strict=True)]
        distance = math.hypot(*apart)
        energy += 10.0 * (distance - length) ** 2
        for axis in range(3):
            pull = 20.0 * (distance - length) * apart[axis] / distance
            forces[i][axis] += pull
            forces[j][axis] -= pull
    return atoms, energy, forces


def frame():
    parts = [molecule(), molecule()]
    energy = sum(part[1] for part in parts)
    columns = "species:S:1:pos:R:3:forces:R:3:REF_forces:R:3"
    cell = f"{BOX} 0 0 0 {BOX} 0 0 0 {BOX}"
    head = f'Lattice="{cell}" Properties={columns} energy={energy:.6f} REF_energy={energy:.6f} pbc="T T T"'
    lines = ["6", head]
    for atoms, _, forces in parts:
        for kind, place, force in zip("OHH", atoms, forces, strict=True):
            numbers = " ".join(f"{value:.6f}" for value in (*place, *force, *force))
            lines.append(f"{kind} {numbers}")
    return "\n".join(lines) + "\n"


for name, count in (("train.xyz", 96), ("valid.xyz", 16)):
    with Path(name).open("w") as file:
        file.writelines(frame() for _ in range(count))
