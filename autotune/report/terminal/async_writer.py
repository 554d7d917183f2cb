"""Text for a stream whose reader may stop: a program that hangs, a pager, a terminal held by Ctrl-S.

A thread writes, so that no event of a search waits for whoever reads of it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import stat
import sys
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from autotune.text.printable import visible

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

MOST_WAITING: Final = 10_000
"""Texts. Who has not taken so many will take none; a long search has some hundreds."""

END_S: Final = 10.0
"""So long the end waits for a program that takes nothing more."""

EXIT_S: Final = 1.0
"""So long the end of the process waits for who reads what people are told."""

_CHUNK_BYTES = 4096
_LOOK_S = 0.05

_outlets: dict[TextIO, AsyncWriter] = {}


class VisibleStream:
    """A text stream that escapes control characters: text of others must not command a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text, controls escaped."""
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write these texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def visible_streams() -> Generator[None]:
    """Within it everything that is written to stdout and stderr is made `visible`."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", VisibleStream(raw(stream))) for stream in kept)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for a writer that makes its own control sequences or writes exact bytes."""
    return stream.stream if isinstance(stream, VisibleStream) else stream


class AsyncWriter:
    """Writes to one stream, in order; from `of`, so that all who write to it are in one order.

    Every text is made `visible` first. What cannot stall (a file, a stream that is only Python's) is written
    to at once.

    Args:
        stream: Written to past its buffer, which has to be empty.
        fd: Of the stream, where a thread has to write; None where not.
    """

    def __init__(self, stream: TextIO, fd: int | None) -> None:
        self.is_open = True
        """Somebody may still read it."""
        self.error: OSError | ValueError | None = None
        self._stream = stream
        self._fd = fd
        # Of a kind that handlers of signals may put into, whatever they have interrupted.
        self._waiting: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._taken = 0
        if fd is not None:
            threading.Thread(target=self._run, name="outlet", daemon=True).start()

    @classmethod
    def of(cls, stream: TextIO) -> AsyncWriter:
        """The outlet of this stream. Not for handlers of signals: it may start a thread."""
        stream = raw(stream)
        fd = _stalling(stream)
        if fd is None:
            return cls(stream, None)
        if stream not in _outlets:
            if not _outlets:
                atexit.register(_drain_all)
            stream.flush()
            try:
                _outlets[stream] = cls(stream, fd)
            except RuntimeError:  # no thread can be had: it is written to at once
                return cls(stream, None)
        return _outlets[stream]

    def put(self, text: str) -> None:
        """Write soon; waits for nobody and never raises."""
        if not self.is_open:
            return
        text = visible(text)
        if self._fd is not None:
            if self._waiting.qsize() < MOST_WAITING:
                self._waiting.put(text)
            else:
                self.is_open = False
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._fail(error)
        except RuntimeError:
            return  # a signal's handler may not write while the stream is written to; the text is lost

    def drain(self, wait_s: float) -> bool:
        """Wait until all is written; False, and nothing more is, where nobody takes any of it for so long."""
        if self._fd is None or not self.is_open:
            return self.is_open
        done = threading.Event()
        self._waiting.put(done)
        taken, until_s = self._taken, time.monotonic() + wait_s
        while not done.wait(min(_LOOK_S, wait_s)):
            if taken != self._taken:
                taken, until_s = self._taken, time.monotonic() + wait_s
            elif time.monotonic() > until_s:
                self.is_open = False
                break
        return self.is_open

    def last(self, text: str, wait_s: float = END_S) -> None:
        """Write what somebody waits for; it is written on return, or nobody takes it.

        Raises:
            OSError: The reader has gone, or the stream cannot be written to.
        """
        if self._fd is None:
            self._stream.write(visible(text))
            return
        self.put(text)
        self.drain(wait_s)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while True:
            text = self._waiting.get()
            if isinstance(text, threading.Event):
                text.set()
                continue
            try:
                self._write(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
            except (OSError, ValueError) as error:
                self._fail(error)

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        # Not through the stream: its lock, held by this thread, would hold whoever else writes to it.
        while data and self.is_open:
            try:
                written = os.write(self._fd, data[:_CHUNK_BYTES])
            except BlockingIOError:
                # Whoever shares the pipe may have asked not to wait; others do then.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                continue
            data = data[written:]
            self._taken += written

    def _fail(self, error: OSError | ValueError) -> None:
        self.error, self.is_open = error, False


def _stalling(stream: TextIO) -> int | None:
    """The descriptor of a stream that may stall; None for a file, and where there is none."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        fd = stream.fileno()
        return None if stat.S_ISREG(os.fstat(fd).st_mode) else fd
    except (OSError, ValueError):
        return None


def _drain_all() -> None:
    for outlet in _outlets.values():
        outlet.drain(EXIT_S)
