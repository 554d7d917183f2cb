"""What a Ray of ours has started is known, its death is seen, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.driver import own_ray
from autotune.driver.own_ray import OwnRay
from autotune.launch import guard, sweep

SLEEPS = "import time; time.sleep(120)"
FORKS = f"import os, time\nif os.fork() == 0: os.setsid()\n{SLEEPS}"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that sleeps, named on its command line as one of Ray's."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(name: str, folder: str, code: str = SLEEPS) -> subprocess.Popen[bytes]:
        words = [name, "-S", "-c", code, f"--temp-dir={folder}"]
        made.append(subprocess.Popen(words, executable=sys.executable))
        return made[-1]

    yield begin
    for process in made:
        sweep.send([*sweep.descendants(process.pid), process.pid], signal.SIGKILL)
        process.wait()


def within(condition: Callable[[], object], bound_s: float = 30.0) -> None:
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)


@pytest.mark.parametrize(("name", "part"), [("/x/gcs_server", "head"), ("/x/raylet/raylet", "raylet")])
def test_a_part_that_dies_is_named(begun, tmp_path: Path, name: str, part: str) -> None:
    essential = begun(name, str(tmp_path))
    begun("other", str(tmp_path))
    within(lambda: len(sweep.descendants(os.getpid())) >= 2)
    own = OwnRay(os.getpid(), str(tmp_path))
    assert own.look() == ""
    essential.kill()
    within(own.look)
    assert own.look() == part


def test_what_it_started_later_and_what_left_its_tree_is_ended(begun, tmp_path: Path) -> None:
    raylet = begun("/x/raylet/raylet", str(tmp_path), FORKS)
    within(lambda: sweep.descendants(raylet.pid))
    (child,) = sweep.descendants(raylet.pid)
    own = OwnRay(os.getpid(), str(tmp_path))
    own.look()
    raylet.kill()
    raylet.wait()
    assert not sweep.is_zombie(child), "nobody's child now, and alive"
    own.end(0.0)
    within(lambda: sweep.is_zombie(child))


def test_no_process_of_the_user_or_of_a_trial_is_touched(begun, tmp_path: Path) -> None:
    theirs = begun("gcs_server", "/somewhere/else")
    words = [sys.executable, "-S", "-c", SLEEPS, guard.__file__]
    code = f"import subprocess\nsubprocess.Popen({words!r})\n{SLEEPS}"
    worker = begun("/x/raylet/raylet", str(tmp_path), code)
    within(lambda: sweep.descendants(worker.pid))
    (trial,) = sweep.descendants(worker.pid)
    within(lambda: guard.__file__.encode() in Path(f"/proc/{trial}/cmdline").read_bytes())
    OwnRay(os.getpid(), str(tmp_path)).end(0.0)
    within(lambda: sweep.is_zombie(worker.pid))
    assert theirs.poll() is None
    assert not sweep.is_zombie(trial)
    sweep.send([trial], signal.SIGKILL)


def test_what_a_dead_drivers_ray_has_left_is_ended_by_its_mark(tmp_path: Path) -> None:
    mine, theirs = (
        subprocess.Popen([sys.executable, "-S", "-c", SLEEPS], env={own_ray.MARK: study})
        for study in ("01MINE", "01THEIRS")
    )
    try:
        within(lambda: sweep.marked("01MINE", own_ray.MARK))
        own_ray.end_marked_rays("01MINE")
        assert mine.wait(30) == -signal.SIGKILL
        assert theirs.poll() is None
    finally:
        for process in (mine, theirs):
            process.kill()
            process.wait()
