"""Process trees killed: whoever of runner, keeper, guard, script or worker dies, nothing survives."""

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.launch.running_trial import Running
from autotune.launch.workspace import isolation as enclosure
from autotune.model.trial import Failure, StartMode
from faultbed.common import (
    TRIALS,
    Case,
    Child,
    Count,
    assignment,
    carrying,
    closing_all,
    dice,
    gone_after,
    tree_hash,
    trial_left_clean,
    until,
    users_tree,
)

NAME = "kills"
TITLE = "process trees killed"
PROMISE_S = 2.0
"""After so long nothing may be left."""

GRACE_S = 60.0
"""Grace of a trial whose runner is killed within it: longer than a busy machine delays the kill."""

WAIT_S = 120.0
"""Bound of every wait for an event that has to come."""

SHAPES = ("forks", "session", "daemon", "deaf", "workers", "breeds", "bare", "rabbits", "hostile")
VICTIMS = (
    "runner",
    "guard by TERM",
    "guard by KILL",
    "keeper by KILL",
    "runner and guard",
    "script",
    "worker",
    "runner, pipe kept",
    "runner in grace",
)
RUNNING = ("script", "worker", "runner, pipe kept", "runner in grace")
"""These are there, or mean something, once the trial runs."""

ROUNDS = 4


def cases() -> list[Case]:
    """Shapes x victims x moments."""
    return [
        {
            "key": f"{shape}/{victim}/{turn}",
            "shape": shape,
            "victim": victim,
            "starting": turn % 3 == 2 and victim not in RUNNING,
        }
        for turn in range(ROUNDS)
        for shape in SHAPES
        for victim in VICTIMS
    ]


def sample() -> list[Case]:
    """Every shape and every victim, some of them while the trial starts."""
    found = []
    for n, shape in enumerate(SHAPES):
        for k in range(3):
            victim = VICTIMS[(3 * n + k) % len(VICTIMS)]
            starting = k == 2 and victim not in RUNNING
            found.append({"key": f"{shape}/{victim}", "shape": shape, "victim": victim, "starting": starting})
    return found


def run(case: Case, folder: Path, *, promise_s: float = PROMISE_S) -> Count:
    """One trial, one kill (or two at once), and a look at what is left after two seconds."""
    draw = dice(NAME, case["key"])
    uid = f"t0000-a1-k{draw.randrange(16**8):08x}"
    project = users_tree(folder)
    before = tree_hash(project.parent)
    isolation = enclosure.available(str(folder / "study" / "trials"))
    # Only the overlay keeps programs out that Python does not see.
    writes = "yes" if isolation == "overlay" else "no"
    command = (sys.executable, "-S", str(TRIALS / "tree.py"), str(case["shape"]), uid, writes)
    late = case["victim"] == "runner in grace"
    forked = bool(case.get("forked"))
    made = assignment(project, uid, setup_s=2 * WAIT_S, deadline_s=3 * WAIT_S)
    held, holds = os.pipe()
    ordered, orders = os.pipe()
    if forked:
        # Forked is what runs under our part of the process, so the tree is a script of the user's here.
        script = _script_of(folder)
        launch = replace(made.launch, script=script, argv=(str(case["shape"]), uid, writes))
        made = replace(made, launch=launch, start=StartMode.FORK)

    def trial() -> list[str]:
        for end in (holds, orders):
            os.close(end)
        if case["victim"] == "runner, pipe kept":
            _fork_beside(held)
        runner = LocalRunner(
            study_dir=folder / "study",
            isolation=isolation,
            command=None if forked else lambda _: command,
            space_floor_bytes=1,
            loaded=(),
            **({"grace_s": GRACE_S} if late else {}),
        )
        threading.Thread(target=lambda: os.read(ordered, 1) and runner.stop(), daemon=True).start()
        ends = list(runner.run(made))
        runner.close()
        wanted = StartMode.FORK if forked else StartMode.COLD
        return [
            ended.outcome.kind.label if isinstance(ended.outcome, Failure) else "measured" for ended in ends
        ] + [f"started {ended.start.value}" for ended in ends if ended.start is not wanted]

    count = Count(injected=1)
    place = folder / "study" / "trials" / uid
    with (
        trial_left_clean(uid),
        closing_all(held, holds, ordered, orders),
        Child(trial, folder / "runner.log") as runner,
    ):
        guards = _guards(runner.pid, uid)
        server = int(process_tree.stat_fields(guards[0])[1]) if forked and guards else 0
        if not case["starting"] and not until((place / "ready").exists, WAIT_S):
            count.notes.append("the trial did not start")
            return count
        time.sleep(draw.random() * 0.3)
        if late:
            os.write(orders, b"s")
            script = process_tree.descendants(guards[1])[0]
            if not until(lambda: (place / "asked").exists() or not process_tree.start_ticks(script), WAIT_S):
                count.notes.append("the trial was not asked to end")
                return count
        victims = _victims(str(case["victim"]), runner.pid, guards, uid, server)
        for pid, number in victims:
            process_tree.send([pid], number)
        runner_lives = "runner" not in case["victim"]
        count.seconds, left = gone_after(uid, promise_s)
        # What changes its number all the time may be missed by a look; it holds a lock.
        alive = place / "alive"
        gone = until(lambda: not _is_locked(alive), max(0.1, promise_s - count.seconds))
        count.survivors = len(left) + (not gone)
        if not gone:
            count.notes.append("what leaves another one in its place is left")
        if runner_lives and not runner.wait(WAIT_S):
            count.notes.append("the runner did not come back")
        elif runner_lives and (not runner.answer or "measured" in runner.answer or len(runner.answer) > 1):
            count.notes.append(f"the runner said {runner.answer!r}")
        if server and not until(lambda: process_tree.is_zombie(server), promise_s):
            count.survivors += 1
            count.notes.append("the fork server is left")
            process_tree.send([server], signal.SIGKILL)
        alive.unlink(missing_ok=True)
        if left:
            count.notes.append(f"{len(left)} left after {promise_s:.0f} s: {_names(left)}")
    if tree_hash(project.parent) != before:
        count.notes.append("the user's files have changed")
    count.survived = int(not count.notes)
    return count


def _fork_beside(held: int) -> None:
    """This program forks once a trial runs, as one may that we are only a part of: what is open stays so.

    Args:
        held: The fork ends when the other end of this pipe is closed.
    """
    begin = Running.__post_init__  # the moment that is meant

    def begun(running: Running) -> None:
        begin(running)
        if os.fork() == 0:
            os.read(held, 1)
            os._exit(0)

    Running.__post_init__ = begun  # in this process alone, which ends here


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _script_of(folder: Path) -> str:
    """The trial as a script in a project of its own."""
    place = folder / "script"
    if not place.exists():
        (place / ".git").mkdir(parents=True)
        shutil.copy(TRIALS / "tree.py", place / "train.py")
    return str(place / "train.py")


def _guards(runner: int, uid: str) -> list[int]:
    """Keeper and guard, in this order, as soon as both are there."""
    found: list[int] = []

    def both() -> bool:
        marked = set(process_tree.marked(uid, process_tree.GUARD_VARIABLE))
        found[:] = [p for p in process_tree.descendants(runner) if p in marked]
        return len(found) >= 2

    until(both, WAIT_S)
    return found[:2]


def _victims(victim: str, runner: int, guards: list[int], uid: str, server: int = 0) -> list[tuple[int, int]]:
    keeper, guard = (*guards, 0, 0)[:2]
    below = process_tree.descendants(guard) if guard else []
    chosen = {
        "runner": [(runner, signal.SIGKILL)],
        "guard by TERM": [(guard, signal.SIGTERM)],
        "guard by KILL": [(guard, signal.SIGKILL)],
        "keeper by KILL": [(keeper, signal.SIGKILL)],
        "runner and guard": [(runner, signal.SIGKILL), (guard, signal.SIGKILL)],
        "script": [(below[0] if below else 0, signal.SIGKILL)],
        "worker": [(_worker(below, uid), signal.SIGKILL)],
        "runner, pipe kept": [(runner, signal.SIGKILL)],
        "runner in grace": [(runner, signal.SIGKILL)],
        "server": [(server, signal.SIGKILL)],
        "server and guard": [(server, signal.SIGKILL), (guard, signal.SIGKILL)],
    }[victim]
    # A pid of 0 would mean our own process group.
    return [(pid, number) for pid, number in chosen if pid > 1]


def _worker(below: list[int], uid: str) -> int:
    """A child of the script."""
    mine = set(carrying(uid))
    parent = below[0] if below else 0
    # One that has gone meanwhile has no parent to report to.
    return next(
        (p for p in below[1:] if p in mine and process_tree.stat_fields(p)[1:2] == [b"%d" % parent]), 0
    )


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _names(pids: list[int]) -> str:
    return ", ".join(_command(pid).replace(bytes(1), b" ").decode(errors="replace")[-80:] for pid in pids[:3])
