"""The control of the script against itself on machines that change within minutes."""

from __future__ import annotations

import math
import random

import pytest

from autotune.core.control import against_itself, claim_bar

SEARCHES = 2000
EVERY_MIN = 22.0 / 60.0
"""Minutes between two runs of the script in cycles."""


@pytest.mark.parametrize(
    ("sd", "minutes", "noise"),
    [(0.0, 1.0, 0.06), (0.06, 1.1, 0.057), (0.13, 1.5, 0.066), (0.126, 0.54, 0.076)],
    ids=["quiet", "a little", "much", "quickly"],
)
def test_a_machine_that_changes_within_minutes_bars_two_searches_of_a_hundred(
    sd: float, minutes: float, noise: float
) -> None:
    barred = 0
    alike = math.exp(-EVERY_MIN / minutes)
    for seed in range(SEARCHES):
        draw = random.Random(seed)
        machine, rates = draw.gauss(0.0, sd), []
        for _ in range(12):
            machine = alike * machine + draw.gauss(0.0, sd * math.sqrt(1.0 - alike**2))
            rates.append(math.exp(machine + draw.gauss(0.0, noise)))
        barred += claim_bar(against_itself(rates)) > 1.0
    assert 0.008 < barred / SEARCHES < 0.035
