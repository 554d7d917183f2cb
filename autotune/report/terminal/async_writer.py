"""Writer for a stream whose reader may stop: a hanging program, a pager, a terminal held by Ctrl-S.

A thread writes, so that no event of a search waits for a reader.
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
"""Texts in the queue. A reader that far behind has stopped; a long search writes some hundreds."""

END_S: Final = 10.0
"""Seconds to wait at the end for a reader that does not read."""

EXIT_S: Final = 1.0
"""Seconds that the end of the process waits for the reader of its messages."""

_CHUNK_BYTES = 4096
_LOOK_S = 0.05

_outlets: dict[TextIO, AsyncWriter] = {}


class VisibleStream:
    """Text stream that escapes control characters, so that external text cannot control a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text with control characters escaped."""
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
    """Escape control characters in everything written to stdout and stderr."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", VisibleStream(raw(stream))) for stream in kept)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


def raw(stream: TextIO) -> TextIO:
    """Return the underlying stream, for a writer of control sequences or exact bytes."""
    return stream.stream if isinstance(stream, VisibleStream) else stream


class AsyncWriter:
    """Writes to one stream in order; `of` returns the same writer for every user of a stream.

    Every text is made `visible` first. A stream that cannot stall (a file, or one without a descriptor) is
    written to at once.

    Args:
        stream: Stream to write to, bypassing its buffer, which has to be empty.
        fd: Descriptor of the stream if a thread has to write; else None.
    """

    def __init__(self, stream: TextIO, fd: int | None) -> None:
        self.is_open = True
        """Whether a reader may be left."""
        self.error: OSError | ValueError | None = None
        self._stream = stream
        self._fd = fd
        # A queue that signal handlers may use, whatever they interrupt.
        self._waiting: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._taken = 0
        if fd is not None:
            threading.Thread(target=self._run, name="outlet", daemon=True).start()

    @classmethod
    def of(cls, stream: TextIO) -> AsyncWriter:
        """Return the writer of this stream. Not for signal handlers: it may start a thread."""
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
            except RuntimeError:  # no thread is available: write at once
                return cls(stream, None)
        return _outlets[stream]

    def put(self, text: str) -> None:
        """Queue the text; never blocks and never raises."""
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
            return  # a signal handler may not write during another write to the stream; the text is lost

    def drain(self, wait_s: float) -> bool:
        """Wait until everything is written.

        Returns False, and drops the rest, if the reader reads nothing for `wait_s` seconds.
        """
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
        """Write a text that a reader waits for; on return it is written, or no reader takes it.

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
        # Not through the stream: its lock, held by this thread, would block other writers.
        while data and self.is_open:
            try:
                written = os.write(self._fd, data[:_CHUNK_BYTES])
            except BlockingIOError:
                # Another user of the pipe may have made it non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                continue
            data = data[written:]
            self._taken += written

    def _fail(self, error: OSError | ValueError) -> None:
        self.error, self.is_open = error, False


def _stalling(stream: TextIO) -> int | None:
    """Return the descriptor of a stream that may stall; None for a file, or without a descriptor."""
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
