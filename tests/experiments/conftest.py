"""Experiments are scripts in folders of their own; here they are imported as their neighbours would."""

from __future__ import annotations

import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path[:0] = [
    str(EXPERIMENTS / name)
    for name in (
        "grids",
        "e2e_speedup",
        "claims",
        "confirmation_noise",
        "coverage",
        "loss_guard",
        "search_replay",
        "soak",
    )
]
