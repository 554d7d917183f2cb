"""Process trees of forked trials killed: the same kills, and the fork server killed as well."""

from pathlib import Path

from faultbed import kills
from faultbed.common import Case, Count

NAME = "forks"
TITLE = "process trees of forked trials killed"
VICTIMS = (*kills.VICTIMS, "server", "server and guard")
ROUNDS = 4


def cases() -> list[Case]:
    """Shapes x victims x moments."""
    return [
        _case(shape, victim, starting=turn % 3 == 2, key=f"{shape}/{victim}/{turn}")
        for turn in range(ROUNDS)
        for shape in kills.SHAPES
        for victim in VICTIMS
    ]


def sample() -> list[Case]:
    """Every shape and every victim, some of them while the trial starts."""
    pairs = [
        (shape, VICTIMS[(2 * n + k) % len(VICTIMS)], k == 1)
        for n, shape in enumerate(kills.SHAPES)
        for k in range(2)
    ]
    return [_case(shape, victim, starting=late, key=f"{shape}/{victim}") for shape, victim, late in pairs]


def _case(shape: str, victim: str, *, starting: bool, key: str) -> Case:
    begins = starting and victim not in kills.RUNNING
    return {"key": key, "shape": shape, "victim": victim, "starting": begins}


def run(case: Case, folder: Path, *, promise_s: float = kills.PROMISE_S) -> Count:
    """One forked trial, one kill (or two at once), and a look at what is left after two seconds."""
    return kills.run({**case, "forked": True}, folder, promise_s=promise_s)
