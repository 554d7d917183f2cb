"""The hard wall: an answer by the end of the budget whatever hangs, and no process after it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.driver.loop import deadline_watchdog
from autotune.driver.loop.deadline_watchdog import HardWall
from autotune.errors import RayUnavailable

pytestmark = pytest.mark.thorough

HANGS = """
import sys, threading
from autotune.driver.loop import deadline_watchdog as wall
wall.ANSWER_S, wall.GONE_S = 0.0, 0.1
wall.HardWall(remaining_s=lambda: 0.0, write=lambda: print("written", flush=True), code=lambda: 7).start()
threading.Event().wait(30)
"""


def test_a_loop_that_never_comes_back_is_ended_with_the_answer_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (7, "written\n")


BLOCKED = """
import os, sys, threading
from autotune.driver.loop import deadline_watchdog as wall
wall.ANSWER_S, wall.GONE_S, wall.WORDS_S = 0.0, 0.1, 0.3
lock = threading.Lock()
lock.acquire()
def say():
    sys.stdout.write("the last words\\n")
    sys.stdout.flush()
    lock.acquire()
wall.HardWall(remaining_s=lambda: 0.0, write=lock.acquire, code=lambda: 7, say=say).start()
threading.Event().wait(30)
"""


def test_neither_an_answer_that_hangs_nor_words_that_nobody_reads_hold_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (7, "the last words\n")


UNREACHABLE = """
import sys, time
from autotune.driver.backends import inline
from autotune.driver import spec, tune
from autotune.driver.loop import deadline_watchdog as wall
spec.MIN_BUDGET_S, wall.GONE_S = 1.0, 0.2
inline.InlineDriver.connect = lambda self: time.sleep(60)
class NoSync:
    def __init__(self, *args, **more): pass
    start = lambda self: None
tune.Syncer = NoSync
from autotune.cli.main import main
words = ["--script", "train.py", "--budget", "2s", "--driver", "inline", *sys.argv[1:]]
sys.argv = ["autotune", "search", *words]
main()
"""


@pytest.mark.parametrize(
    "more", [[], *(pytest.param([word], marks=pytest.mark.slow) for word in ("--json", "--jsonl"))]
)
def test_a_search_that_never_measured_anything_ends_by_force_with_an_error(
    tmp_path: Path, more: list[str]
) -> None:
    (tmp_path / "train.py").write_text("import argparse\nimport os\n")
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE, "--knob", "threads", *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 6, done.stderr
    assert "error: the search did not finish within the budget of 2 s; there is no answer" in done.stderr
    assert bool(done.stdout) == bool(more)
    if more:
        reported = json.loads(done.stdout.splitlines()[-1] if more == ["--jsonl"] else done.stdout)
        assert (reported["exit"], reported["error"]["kind"]) == (6, "BackendError")
    assert not (tmp_path / "best.yaml").exists()


STUCK = """
import threading, time
from autotune.driver.backends import inline
from autotune.driver import tune
from autotune.driver.loop import deadline_watchdog as wall
from autotune.errors import RayUnavailable
tune.LOST_S, wall.ANSWER_S, wall.GONE_S = 0.5, 0.0, 0.2
searches = []
begin = tune._Search.begin
tune._Search.begin = lambda self, facts: (searches.append(self), begin(self, facts))[1]
def stuck(self):
    error = RayUnavailable("the head of the cluster no longer answers", hint="autotune resume continues")
    threading.Timer(0.1, searches[0]._lose, [error]).start()
    time.sleep(60)
inline.InlineDriver.connect = stuck
class NoSync:
    def __init__(self, *args, **more): pass
    start = lambda self: None
tune.Syncer = NoSync
from autotune.cli.main import main
import sys
sys.argv = ["autotune", *"search --script train.py --budget 10m --driver inline --knob threads".split()]
main()
"""


def test_a_search_held_by_a_dead_ray_ends_long_before_its_budget_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\nimport os\n")
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path
    )
    assert done.returncode == RayUnavailable.exit_code, done.stderr
    assert "error: the head of the cluster no longer answers" in done.stderr
    assert "autotune resume continues" in done.stderr


def test_a_search_that_ends_by_itself_is_left_alone() -> None:
    written = threading.Event()
    made = HardWall(remaining_s=lambda: deadline_watchdog.ANSWER_S, write=written.set, code=lambda: 7)
    made.disarm()
    made.start()
    assert not written.wait(0.2)


SOON = """
import threading
from autotune.driver.loop import deadline_watchdog as wall
wall.ANSWER_S, wall.GONE_S = 0.0, 0.1
made = wall.HardWall(remaining_s=lambda: 3600.0, write=lambda: print("written", flush=True), code=lambda: 7)
made.start()
made.bring_forward(0.2)
threading.Event().wait(30)
"""


def test_an_end_that_was_brought_forward_comes_then() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SOON], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (7, "written\n")


def test_an_end_that_was_brought_forward_can_be_taken_back() -> None:
    written = threading.Event()
    made = HardWall(remaining_s=lambda: 3600.0, write=written.set, code=lambda: 7, may_exit=False)
    made.start()
    made.bring_forward(deadline_watchdog.ANSWER_S + 0.3)
    made.bring_forward(math.inf)
    assert not written.wait(0.6)
    made.bring_forward(0.0)
    assert written.wait(20.0)
    made.disarm()


def test_an_answer_that_cannot_be_written_does_not_stop_the_ending() -> None:
    text = HANGS.replace('print("written", flush=True)', "1 / 0")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 7


def test_a_process_that_is_not_ours_is_never_ended() -> None:
    text = HANGS.replace("code=lambda: 7", "code=lambda: 7, may_exit=False").replace("wait(30)", "wait(1)")
    done = subprocess.run(
        [sys.executable, "-c", text + "print('still here')"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "written\nstill here\n")
