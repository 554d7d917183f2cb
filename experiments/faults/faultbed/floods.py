"""Floods of output, none of it text: drained, bounded on disk and in memory, shown without an error."""

import json
import sys
import threading
import time
from pathlib import Path

from autotune.launch.guard import guard, process_tree
from autotune.launch.process import LocalRunner
from autotune.model.trial import Failure, FailureKind
from autotune.model.wire import to_wire
from faultbed.common import TRIALS, Case, Count, assignment, carrying, dice, trial_left_clean, users_tree

NAME = "floods"
TITLE = "floods of output"
KINDS = ("no text", "one line", "zeros", "colours", "long lines", "both streams")
KEPT_BYTES = guard.HEAD_BYTES + guard.TAIL_BYTES + 4096
MEMORY_BYTES = 96 << 20
"""A guard keeps 4 MiB of each stream, and twice as much while it writes that down."""


def cases() -> list[Case]:
    """256 MiB of every kind, and ten gigabytes of one."""
    each = [{"key": kind, "kind": kind, "mib": 256} for kind in KINDS]
    return [*each, {"key": "ten gigabytes", "kind": "no text", "mib": 10 * 1024}]


def sample() -> list[Case]:
    """24 MiB of every kind."""
    return [{"key": kind, "kind": kind, "mib": 24} for kind in KINDS]


def run(case: Case, folder: Path) -> Count:
    """One trial that writes so much and then fails."""
    uid = f"t0000-a1-f{dice(NAME, case['key']).randrange(16**8):08x}"
    project = users_tree(folder)
    command = (sys.executable, "-S", str(TRIALS / "flood.py"), str(case["kind"]), str(case["mib"]))
    runner = LocalRunner(
        study_dir=folder / "study", isolation="redirect", command=lambda _: command, space_floor_bytes=1
    )
    count = Count(injected=1)
    with trial_left_clean(uid), _Watched(uid) as memory:
        begun = time.monotonic()
        made = assignment(project, uid, setup_s=600.0, deadline_s=600.0)
        (ended,) = runner.run(made)
        count.seconds = time.monotonic() - begun
    kept = {
        name: (folder / "study" / "trials" / uid / name).stat().st_size
        for name in ("stdout.log", "stderr.log")
    }
    count.facts = {"kept_bytes": sum(kept.values()), "guard_bytes": memory.peak_bytes, "mib": case["mib"]}
    outcome = ended.outcome
    if not isinstance(outcome, Failure) or outcome.kind is not FailureKind.CRASH_EXIT:
        count.notes.append(f"it was called {outcome}"[:200])
    else:
        # What is shown and journaled is text, whatever the bytes were.
        json.dumps(to_wire(outcome), allow_nan=False).encode()
        if "the last word" not in str(outcome.evidence.get("log_tail")):
            count.notes.append("the last word is missing")
    count.notes += [f"{name} holds {size} bytes" for name, size in kept.items() if size > KEPT_BYTES]
    if memory.peak_bytes > MEMORY_BYTES:
        count.notes.append(f"the guard took {memory.peak_bytes >> 20} MiB")
    count.survived = int(not count.notes)
    return count


class _Watched:
    """The peak memory of a trial's guard and keeper, while it lasts."""

    def __init__(self, uid: str) -> None:
        self.peak_bytes = 0
        self._uid = uid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watched":  # noqa: PYI034 (typing.Self came with Python 3.11)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            guards = [
                pid
                for pid in carrying(self._uid)
                if pid in process_tree.marked(self._uid, process_tree.GUARD_VARIABLE)
            ]
            self.peak_bytes = max([self.peak_bytes, *(_peak(pid) for pid in guards)])


def _peak(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
