"""What a person sees on a terminal while a search runs, recorded from a pseudo-terminal.

The search is the real command with the real driver over a runner without processes.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from terminal import Terminal

SUPPORT = Path(__file__).parents[1] / "support"
CHILD = f"""
import fcntl, os, sys, termios, time
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
sys.path.insert(0, {str(SUPPORT)!r})
from dataclasses import replace
from pytest import MonkeyPatch
from inline_search import inline
from autotune.launch.fake import COMPUTE_BOUND
from autotune.cli.main import main
pace_s, late_s = float(os.environ["PACE_S"]), float(os.environ["LATE_S"])
inline(
    MonkeyPatch(),
    replace(COMPUTE_BOUND, gains={{"precision": {{"bf16": 0.5}}}}),
    before=lambda number: time.sleep(late_s if number == 5 else pace_s),
)
main()
"""
SEARCH = ("search", "--script", "train.py", "--budget", "4m", "--driver", "inline", "--label", "mine")
NARROW = ("--set", "precision=fp32,bf16", "--knob", "precision")
LIMIT_S = 60.0


class Recorded:
    """One command with its stderr on a terminal of its own, and every screen that was seen."""

    def __init__(self, folder, *words, columns=60, rows=24, late_s=1.5, **environ):
        self.screen = Terminal(columns, rows)
        self.raw = ""
        self.seen = []
        self._master, slave = pty.openpty()
        self._size(columns, rows)
        given = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR")}
        given |= {
            "TERM": "xterm",
            "PACE_S": "0.05",
            "LATE_S": str(late_s),
            "AUTOTUNE_HOME": str(folder / "home"),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words],
            cwd=folder, env=given | environ, start_new_session=True,
            stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True,
        )  # fmt: skip
        os.close(slave)

    def until(self, text):
        """Read until that stands on the screen."""
        end = time.monotonic() + LIMIT_S
        while not any(text in line for line in self.screen.lines()):
            assert self._read(end), f"{text!r} was never seen, but:\n" + "\n".join(self.screen.lines())
        return self.screen.lines()

    def resize(self, columns, rows):
        """As by the corner of the window, between two frames."""
        while select.select([self._master], [], [], 0.1)[0] and self._read(time.monotonic() + 1):
            pass
        self._size(columns, rows)
        self.screen.resize(columns, rows)

    def press(self, key):
        os.write(self._master, key)

    def end(self):
        """Exit code and stdout; everything is read."""
        end = time.monotonic() + LIMIT_S
        while self._read(end):
            pass
        out, _ = self._process.communicate(timeout=LIMIT_S)
        return self._process.returncode, out

    def close(self):
        """Whatever the test came to, nothing goes on."""
        self._process.kill()
        self._process.communicate()
        os.close(self._master)

    def _read(self, end):
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # how Linux says that the other side is closed
            data = b""
        text = data.decode()
        self.raw += text
        self.screen.feed(text)
        self.seen.append("\n".join(self.screen.lines()))
        return bool(data)

    def _size(self, columns, rows):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.fixture
def record(tmp_path):
    """Starts a command in a folder with a script."""
    (tmp_path / "train.py").write_text("import argparse\np = argparse.ArgumentParser()\n")
    begun = []

    def start(*words, **options):
        begun.append(Recorded(tmp_path, *SEARCH, *NARROW, *words, **options))
        return begun[-1]

    yield start
    for recorded in begun:
        recorded.close()


def left(recorded):
    """Lines on the screen at the end, the one about the study aside."""
    first, *rest = recorded.screen.lines()
    assert first.startswith("study mine: train.py, 4 min, driver")
    return rest


@pytest.mark.thorough
def test_a_search_is_worth_watching_at_sixty_columns_and_leaves_nothing_behind(record):
    recorded = record()
    lines = recorded.until("5      ")
    view = lines[1:]
    assert all(len(line) < 60 for line in view)
    assert re.fullmatch(r"mine   \d trials +\d:\d\d left of 4 min", view[0])
    message = {line[:9].strip(): line[9:] for line in view}
    assert message["now"].startswith(("trying", "exploring", "confirming"))
    assert re.match(r"[\d.]+ samples/s", message["yours"])
    assert re.match(r"\d\.\d\dx .*not confirmed", message["best"])
    assert message["with"] == "precision=bf16"
    assert message["failed"] == "none"
    assert re.match(r"\[#*-*\] \d+% of the budget", message["time"])
    assert "script" in message["spent"]
    recorded.until("6      ")
    recorded.resize(48, 30)
    code, out = recorded.end()
    assert code == 0
    assert out.startswith("Faster: ")
    assert left(recorded) == []
    assert "\x1b[32m" in recorded.raw
    assert (recorded.screen.unknown, recorded.screen.modes, recorded.screen.column) == ([], [], 0)


@pytest.mark.slow
def test_a_first_ctrl_c_is_answered_and_the_answer_follows(record):
    recorded = record(late_s=3)
    recorded.until("running 1 s")
    recorded.press(b"\x03")
    recorded.until("stopping with the best so far")
    code, out = recorded.end()
    assert code == 130
    assert "autotune resume mine" in out
    assert left(recorded) == []
    assert recorded.screen.modes == []


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_the_terminal_whole(record):
    recorded = record(late_s=30)
    recorded.until("running 1 s")
    recorded.press(b"\x03")
    recorded.until("again: at once")
    recorded.press(b"\x03")
    assert recorded.end()[0] == 130
    # No mode was set that somebody would have to take back, and the shell's next line is a new one.
    assert recorded.screen.modes == []
    assert recorded.screen.column in (0, len("^C"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 8), (200, 50)])
def test_a_terminal_of_another_size_is_never_broken(record, size):
    recorded = record(columns=100)
    recorded.until("  3      ")
    recorded.resize(*size)
    recorded.until("6 trials")
    # On a lower one the top of the old view was scrolled away, where nobody can reach it.
    assert sum("left of 4 min" in line for line in recorded.screen.visible()) == 1
    assert recorded.end()[0] == 0
    assert not any("left of 4 min" in line for line in recorded.screen.visible())


@pytest.mark.slow
def test_no_color_takes_colours_away_and_nothing_else(record):
    recorded = record(NO_COLOR="1")
    recorded.until("confirming")
    assert recorded.end()[0] == 0
    assert recorded.screen.colours == 0
    assert left(recorded) == []


@pytest.mark.slow
def test_quiet_leaves_the_terminal_alone_and_json_is_one_object(record):
    recorded = record("--quiet", "--json", late_s=0)
    code, out = recorded.end()
    assert (code, recorded.raw) == (0, "")
    assert json.loads(out)["exit"] == 0


@pytest.mark.slow
def test_lines_for_a_program_and_a_view_for_a_person_do_not_meet(record):
    recorded = record("--jsonl", late_s=0)
    code, out = recorded.end()
    assert json.loads(out.splitlines()[-1])["exit"] == code == 0
    assert "left of 4 min" in recorded.raw


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "true"}])
def test_where_nobody_watches_there_are_plain_lines(record, environ):
    recorded = record(columns=200, late_s=0, **environ)
    assert recorded.end()[0] == 0
    assert "\x1b" not in recorded.raw
    assert "[baseline] trial 0 | baseline" in recorded.raw
