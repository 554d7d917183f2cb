"""The hard wall: an answer by the end of the budget whatever hangs, and no process after it."""

from __future__ import annotations

import subprocess
import sys
import threading

from autotune.driver import wall
from autotune.driver.wall import HardWall

HANGS = """
import sys, threading
from autotune.driver import wall
wall.ANSWER_S, wall.GONE_S = 0.0, 0.1
wall.HardWall(remaining_s=lambda: 0.0, write=lambda: print("written", flush=True), code=lambda: 7).start()
threading.Event().wait(30)
"""


def test_a_loop_that_never_comes_back_is_ended_with_the_answer_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (7, "written\n")


def test_a_search_that_ends_by_itself_is_left_alone() -> None:
    written = threading.Event()
    made = HardWall(remaining_s=lambda: wall.ANSWER_S, write=written.set, code=lambda: 7)
    made.disarm()
    made.start()
    assert not written.wait(0.2)


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
