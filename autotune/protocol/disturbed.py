"""What the launcher tells a trial while it runs: when something else spoilt its timing.

Blocks of such a time are set aside, so the trial has to measure longer for as many as it would have had.
One file in the trial's folder, one stretch of time a line, on the clock that both sides share; it is there
only once there is something to tell. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "disturbed"
"""Of the file in the trial's folder."""

TOGETHER_NS: Final = 2_000_000_000
"""Looks further apart than this tell nothing of the time in between."""

Span = tuple[int, int]
"""First and last moment (`time.perf_counter_ns`) at which it was seen to be disturbed."""

_LINE_BYTES = 64
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def spans(looks: Iterable[tuple[int, bool]]) -> tuple[Span, ...]:
    """Stretches of time that looks at a machine say were disturbed.

    A look tells of a moment; between two in a row that both found somebody else, somebody else was there.

    Args:
        looks: When, and whether that was disturbed; in order.
    """
    found: list[Span] = []
    before: int | None = None
    for t_ns, is_disturbed in looks:
        if is_disturbed and before is not None and t_ns - before <= TOGETHER_NS:
            found[-1] = (found[-1][0], t_ns)
        elif is_disturbed:
            found.append((t_ns, t_ns))
        before = t_ns if is_disturbed else None
    return tuple(found)


def touched(begins_ns: Sequence[int], ends_ns: Sequence[int], disturbed: Sequence[Span]) -> tuple[bool, ...]:
    """Which steps lie in such a stretch, as a whole or in part.

    Args:
        begins_ns: When each step began.
        ends_ns: When it ended.
        disturbed: Stretches; in any order, and they may overlap.
    """
    if not disturbed:
        return (False,) * len(ends_ns)
    return tuple(
        any(begin <= last and first < end for first, last in disturbed)
        for begin, end in zip(begins_ns, ends_ns, strict=True)
    )


class DisturbanceWriter:
    """The launcher's side.

    Args:
        folder: Of the trial.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._before: int | None = None

    def look(self, t_ns: int, *, is_disturbed: bool) -> None:
        """Somebody has looked; looks come in order. A full disk costs the trial nothing but this help."""
        before, self._before = self._before, t_ns if is_disturbed else None
        if not is_disturbed:
            return
        self.tell(before if before is not None and t_ns - before <= TOGETHER_NS else t_ns, t_ns)

    def tell(self, first_ns: int, last_ns: int) -> None:
        """Report a stretch of time that is known as a whole."""
        try:
            # The folder is the trial's as well, which may have put a link or a pipe there.
            fd = os.open(self._path, _APPEND, 0o600)
        except OSError:
            return
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.write(fd, b"%d %d\n" % (first_ns, last_ns))
        except OSError:
            return
        finally:
            os.close(fd)


class DisturbanceReader:
    """The trial's side.

    Args:
        folder: Of the trial; empty where nobody tells anything.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{NAME}" if folder else ""
        self._at = 0
        self._spans: list[Span] = []

    def spans(self) -> Sequence[Span]:
        """All that was told so far; costs one failed look-up as long as there is nothing."""
        if not self._path:
            return ()
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return self._spans
        try:
            size = os.fstat(fd).st_size - self._at
            told = os.pread(fd, size, self._at) if size > 0 else b""
        except OSError:
            return self._spans
        finally:
            os.close(fd)
        whole = told[: told.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            span = _span(line)
            if span is None:
                continue
            if self._spans and span[0] <= self._spans[-1][1]:
                # Looks follow each other four times a second, and every step is held against every span.
                span = (self._spans[-1][0], max(span[1], self._spans.pop()[1]))
            self._spans.append(span)
        return self._spans


def _span(line: bytes) -> Span | None:
    try:
        first, last = line[:_LINE_BYTES].split()
        return int(first), int(last)
    except ValueError:
        return None
