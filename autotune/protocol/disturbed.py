"""Disturbed time spans of a running trial, reported by its launcher.

Blocks in such a span are set aside, and the trial measures longer to replace them. One file in the trial's
folder, one span per line, on the clock that both sides share. It is created with the first span. Standard
library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "disturbed"
"""Name of the file in the trial's folder."""

TOGETHER_NS: Final = 2_000_000_000
"""Samples further apart than this show nothing about the time in between."""

Span = tuple[int, int]
"""First and last time (`time.perf_counter_ns`) of a disturbance."""

_LINE_BYTES = 64
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def spans(samples: Iterable[tuple[int, bool]]) -> tuple[Span, ...]:
    """Return the disturbed spans, from samples.

    A sample holds for a moment. The time between two consecutive disturbed samples counts as disturbed.

    Args:
        samples: (time, whether it was disturbed), in order.
    """
    found: list[Span] = []
    before: int | None = None
    for t_ns, is_disturbed in samples:
        if is_disturbed and before is not None and t_ns - before <= TOGETHER_NS:
            found[-1] = (found[-1][0], t_ns)
        elif is_disturbed:
            found.append((t_ns, t_ns))
        before = t_ns if is_disturbed else None
    return tuple(found)


def touched(begins_ns: Sequence[int], ends_ns: Sequence[int], disturbed: Sequence[Span]) -> tuple[bool, ...]:
    """Return for each step whether it overlaps a span.

    Args:
        begins_ns: Start of each step.
        ends_ns: End of each step.
        disturbed: Spans in any order; they may overlap.
    """
    if not disturbed:
        return (False,) * len(ends_ns)
    return tuple(
        any(begin <= last and first < end for first, last in disturbed)
        for begin, end in zip(begins_ns, ends_ns, strict=True)
    )


class DisturbanceWriter:
    """Writer in the launcher.

    Args:
        folder: Folder of the trial.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._before: int | None = None

    def sample(self, t_ns: int, *, is_disturbed: bool) -> None:
        """Record a sample, in order. On a full disk the trial only lacks this information."""
        before, self._before = self._before, t_ns if is_disturbed else None
        if not is_disturbed:
            return
        self.write(before if before is not None and t_ns - before <= TOGETHER_NS else t_ns, t_ns)

    def write(self, first_ns: int, last_ns: int) -> None:
        """Report a complete span."""
        try:
            # The trial can write to this folder too, and may have put a link or a pipe there.
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
    """Reader in the trial.

    Args:
        folder: Folder of the trial; empty without a launcher.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{NAME}" if folder else ""
        self._at = 0
        self._spans: list[Span] = []

    def spans(self) -> Sequence[Span]:
        """Return all reported spans; costs one failed lookup while there are none."""
        if not self._path:
            return ()
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return self._spans
        try:
            size = os.fstat(fd).st_size - self._at
            data = os.pread(fd, size, self._at) if size > 0 else b""
        except OSError:
            return self._spans
        finally:
            os.close(fd)
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            span = _span(line)
            if span is None:
                continue
            if self._spans and span[0] <= self._spans[-1][1]:
                # Samples come four times a second, and every step is compared with every span.
                span = (self._spans[-1][0], max(span[1], self._spans.pop()[1]))
            self._spans.append(span)
        return self._spans


def _span(line: bytes) -> Span | None:
    try:
        first, last = line[:_LINE_BYTES].split()
        return int(first), int(last)
    except ValueError:
        return None
