"""Draws made in a process of its own, for the sampler that needs PyTorch: the driver imports none.

One child per sampler, started at the first question and ended with it. It is idle while trials run: a
question is asked between them. Lines of JSON on its standard input and output; at the end of its input
it ends, so it never outlives the search.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
import weakref
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from autotune.search.samplers.optuna_sampler import Question, draws

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

log = logging.getLogger(__name__)

ANSWER_S = 120.0
"""A draw that takes longer is given up; the first one imports PyTorch."""

KILLED_S = 5.0
"""A killed child is waited for so long."""


class DrawsProcess:
    """Draws for questions, made by a child.

    A child that has answered before and dies is started again, once. Where it cannot be started, dies again
    or does not answer in time, draws are random from then on, and a line of the log says so.

    Args:
        command: Starts the child; another one in tests.
        answer_s: How long a draw may take.
    """

    def __init__(self, command: tuple[str, ...] = (), *, answer_s: float = ANSWER_S) -> None:
        self._command = command or (sys.executable, "-m", "autotune.search.samplers.draws_process")
        self._answer_s = answer_s
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: Callable[[], object] | None = None
        self._is_broken = False
        self._has_answered = False
        self._was_restarted = False

    def __call__(self, question: Question) -> Generator[dict[str, int]]:
        """Draws without end, as `autotune.search.samplers.optuna_sampler.draws` makes them."""
        whole = {"question": asdict(question)}
        line: dict[str, Any] = whole
        while not self._is_broken:
            try:
                params = self._ask(line)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.close()
                retry = self._has_answered and not self._was_restarted
                if retry and not isinstance(error, TimeoutError):
                    log.info("the sampler's process is gone and started again: %s", error)
                    self._was_restarted = True
                    line = whole
                    continue
                log.warning("the sampler's process is gone, draws are random from here on: %s", error)
                self._is_broken = True
                break
            self._has_answered = True
            yield params
            line = {"again": True}
        yield from draws(replace(question, kind="random"))

    def close(self) -> None:
        """End the child."""
        if self._finalizer is not None:
            self._finalizer()
        self._child, self._finalizer = None, None

    def _ask(self, line: dict[str, Any]) -> dict[str, int]:
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(line).encode() + b"\n")
        child.stdin.flush()
        answer = json.loads(_line(child.stdout.fileno(), self._answer_s))
        return {str(knob): int(place) for knob, place in answer["params"].items()}

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the driver's to judge
            )
            self._finalizer = weakref.finalize(self, _end, self._child)
        return self._child


def _line(fd: int, limit_s: float) -> bytes:
    """One line, or an error after so many seconds."""
    until_s, data = time.monotonic() + limit_s, b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no answer within {limit_s:.0f} s")
        more = os.read(fd, 65536)
        if not more:
            raise BrokenPipeError("it has ended")
        data += more
    return data


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.kill()
    # What waits inside the kernel is ended by nothing, and the search goes on without it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILLED_S)


def serve(lines: Iterator[str]) -> Iterator[str]:
    """The child's part: a line of answer for every line of question."""
    drawn: Iterator[dict[str, int]] | None = None
    for line in lines:
        asked = json.loads(line)
        if "question" in asked:
            drawn = draws(_question(asked["question"]))
        assert drawn is not None
        yield json.dumps({"params": next(drawn)})


def _question(data: dict[str, Any]) -> Question:
    return Question(
        kind=data["kind"],
        seed=data["seed"],
        knobs=tuple((name, size, ordinal) for name, size, ordinal in data["knobs"]),
        told=tuple((params, tuple(values), violation) for params, values, violation in data["told"]),
        worst=tuple(data["worst"]),
    )


if __name__ == "__main__":
    for answer in serve(sys.stdin):
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
