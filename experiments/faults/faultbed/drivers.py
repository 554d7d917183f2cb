"""Drivers killed before, inside and after commits of their journal: nothing is lost or doubled."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.store.journal import Journal
from faultbed.common import Case, Child, Count, dice
from faultbed.search import LIFE_S, begin, entries, lived, losses, undisturbed

NAME = "drivers"
TITLE = "drivers killed at the borders of the journal"
SEARCHES = 60
KILLS = 10
LIVES = 40


def cases() -> list[Case]:
    """Searches, each killed ten times."""
    return [{"key": f"{n}", "kills": KILLS} for n in range(SEARCHES)]


def sample() -> list[Case]:
    """Two searches."""
    return [{"key": f"{n}", "kills": KILLS} for n in range(2)]


class KilledAt:
    """Kills this process at the n-th border: before a commit, twice inside it, and right after it."""

    def __init__(self, n: int) -> None:
        self._left = n

    def border(self) -> None:
        """One border has been reached."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def patches(self) -> list[Any]:
        """Around the journal's own methods; only the thread that searches counts, so that n says where."""
        commit, move_head = Journal.__dict__["_commit"], Journal.__dict__["_move_head"]

        def committing(journal: Journal, *what: Any) -> int:
            self.border()
            seq = commit(journal, *what)
            self.border()
            return seq

        def moving(journal: Journal, *what: Any) -> None:
            self.border()
            move_head(journal, *what)
            self.border()

        return [
            mock.patch.object(Journal, "_commit", committing),
            mock.patch.object(Journal, "_move_head", moving),
        ]


def run(case: Case, folder: Path) -> Count:
    """One search, killed again and again, then left to end by itself."""
    draw = dice(NAME, case["key"])
    seed = draw.randrange(4)
    expected = undisturbed(folder, seed)
    home = begin(folder, seed=seed)
    count = Count()
    ended: dict[str, Any] | None = None
    for life in range(LIVES):
        # Mostly far enough for a trial or some; sometimes right into the beginning of a life.
        far = draw.randrange(14, 70) if draw.random() < 0.85 else draw.randrange(1, 14)
        last = count.injected >= case["kills"]
        at = KilledAt(0 if last else far)
        with Child(lambda at=at: lived(home, patches=at.patches()), folder / "driver.log") as driver:
            if not driver.wait(LIFE_S):
                count.notes.append(f"life {life} did not end")
                return count
            ended = driver.answer
            if driver.signal == signal.SIGKILL:
                count.injected += 1
            else:
                break
        _look(home, count)
    if not ended or "picks" not in ended:
        count.notes.append(f"the search ended with {ended!r}")
        return count
    count.lost, count.duplicated = losses(home)
    _look(home, count)
    same = ended["picks"] == expected["picks"]
    more, given_up = _more(home, expected), _given_up(home)
    count.facts = {"same_picks": int(same), "lives": _lives(home), "more_trials": more, "given_up": given_up}
    if more and not given_up:
        count.notes.append(f"{more} trials more than without kills")
    if not same:
        count.notes.append(f"picks {ended['picks']} instead of {expected['picks']}")
    count.survived = count.injected if not (count.lost or count.duplicated or count.notes) else 0
    return count


def _look(home: Path, count: Count) -> None:
    """Opening it checks every digest."""
    try:
        entries(home)
    except Exception as error:  # noqa: BLE001 (an error here is the fault under test)
        count.notes.append(f"after kill {count.injected}: {type(error).__name__}: {error}")


def _lives(home: Path) -> int:
    return sum(entry.kind == "opened" for entry in entries(home)) - 1


def _more(home: Path, expected: dict[str, Any]) -> int:
    """Trials beyond those of the undisturbed search: none, unless one was given up."""
    return sum(entry.kind == "finished" for entry in entries(home)) - int(expected["trials"])


def _given_up(home: Path) -> int:
    """Trials that had cost so many lives that they were not run again."""
    reported = (entry.data["outcome"] for entry in entries(home) if entry.kind == "finished")
    return sum(outcome.get("message") == "the search ended while it ran" for outcome in reported)
