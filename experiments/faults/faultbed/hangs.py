"""Hangs of many kinds: each is ended in time, named, and leaves nothing."""

import sys
import time
from pathlib import Path

from autotune.launch.process import GRACE_S, LocalRunner
from autotune.model.trial import Failure, FailureKind
from faultbed.common import TRIALS, Case, Count, assignment, dice, gone_after, trial_left_clean, users_tree

NAME = "hangs"
TITLE = "hangs"
LIMIT_S = 0.4
PROMISE_S = 7.0
"""A hang is over so long after its limit: a second for stacks, five of grace, and the kill."""

KINDS = (
    "lock",
    "sleep",
    "full pipe",
    "stopped",
    "empty queue",
    "silent name server",
    "loop in C",
    "deaf",
    "file lock",
    "fifo",
)
ROUNDS = 25


def cases() -> list[Case]:
    """Every kind 25 times, with the grace of a real search."""
    return [
        {"key": f"{kind}/{turn}", "kind": kind, "grace_s": GRACE_S}
        for turn in range(ROUNDS)
        for kind in KINDS
    ]


def sample() -> list[Case]:
    """Every kind once, with a short grace."""
    return [{"key": kind, "kind": kind, "grace_s": 0.3} for kind in KINDS]


def run(case: Case, folder: Path, *, promise_s: float = PROMISE_S) -> Count:
    """One trial that hangs from its start."""
    uid = f"t0000-a1-h{dice(NAME, case['key']).randrange(16**8):08x}"
    project = users_tree(folder)
    # The last word on its command line names the trial, for whoever looks for what is left.
    command = (sys.executable, "-S", str(TRIALS / "hang.py"), str(case["kind"]), uid)
    runner = LocalRunner(
        study_dir=folder / "study",
        isolation="redirect",
        command=lambda _: command,
        space_floor_bytes=1,
        progress_floor_s=LIMIT_S,
        grace_s=float(case["grace_s"]),
    )
    count = Count(injected=1)
    with trial_left_clean(uid):
        begun = time.monotonic()
        (ended,) = runner.run(assignment(project, uid, setup_s=LIMIT_S, deadline_s=4 * promise_s))
        count.seconds = time.monotonic() - begun
        count.survivors = len(gone_after(uid, 0.5)[1])
    named = ended.outcome.kind if isinstance(ended.outcome, Failure) else None
    if named is not FailureKind.TIMEOUT_PROGRESS:
        count.notes.append(f"it was called {ended.outcome}"[:200])
    if count.seconds > LIMIT_S + promise_s:
        count.notes.append(f"ended after {count.seconds:.1f} s")
    count.survived = int(not count.notes and not count.survivors)
    return count
