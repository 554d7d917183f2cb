"""Event lines: append one message as a line; read complete lines only. Standard library only.

An incomplete last line is not read yet. Lines of another nonce are ignored. Step batches have a short form
(lists), because they are most of the volume.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from autotune.model import wire
from autotune.protocol.events import EVENTS, Event, StepRow, Steps
from autotune.text.encodable import writable_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_LINE_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
Row = tuple[int, int, int, float, int, int, int]
"""Fields of a `StepRow` in order: the training process creates no objects for its steps."""


def encode(event: Event, nonce: str) -> bytes:
    """Return one line, newline included."""
    if isinstance(event, Steps):
        body: object = [
            [r.t_ns, r.wait_ns, r.samples, r.device_ms, r.queue_ns, r.mark, r.aside_ns] for r in event.rows
        ]
    else:
        body = wire.to_wire(event)
    return _line(type(event).__name__, body, nonce)


def _line(name: str, body: object, nonce: str) -> bytes:
    line = {"n": nonce, "e": name, "d": body}
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes, nonce: str) -> Event | None:
    """Return the event of one complete line; None for foreign, damaged or unknown lines."""
    try:
        record = json.loads(line)
        if record["n"] != nonce:
            return None
        if b"\\ud" in line:
            # A lone surrogate, as from an undecodable file name, which could not be written again.
            record = json.loads(writable_json(json.dumps(record, ensure_ascii=False)))
        if record["e"] == "Steps":
            return Steps(rows=tuple(_row(r) for r in record["d"]))
        return wire.from_wire(EVENTS[record["e"]], record["d"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _row(r: list[float]) -> StepRow:
    return StepRow(
        t_ns=int(r[0]),
        wait_ns=int(r[1]),
        samples=int(r[2]),
        device_ms=r[3],
        queue_ns=int(r[4]),
        mark=int(r[5]),
        aside_ns=int(r[6]),
    )


def open_plain(path: Path) -> BinaryIO:
    """Return a file of a trial's folder, open for reading, if it is a regular file.

    The trial can write to the folder: a link could lead to a file of the user's, and opening a pipe without a
    writer blocks.

    Raises:
        OSError: It does not exist, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(fd, "rb")


class Writer:
    """Appends events to one file; owned by one process, and inactive in its forks."""

    def __init__(self, path: Path, nonce: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._nonce = nonce
        self._pid = os.getpid()

    def write(self, event: Event) -> None:
        """Append an event in one `write` call, so that a reader gets the whole line or an incomplete tail."""
        if os.getpid() == self._pid:
            self._append(encode(event, self._nonce))

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Append the line of a `Steps` event with these rows."""
        if os.getpid() == self._pid:
            self._append(_line("Steps", rows, self._nonce))

    def _append(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def sync(self) -> None:
        """Force the file to disk; called once, before a process ends."""
        if os.getpid() == self._pid:
            os.fsync(self._fd)


class Reader:
    """Follows a file that is being written; the file may not exist yet."""

    def __init__(self, path: Path, nonce: str) -> None:
        self._path = path
        self._nonce = nonce
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[Event]:
        """Yield all complete events since the last call."""
        try:
            file = open_plain(self._path)
        except OSError:
            return
        with file:
            file.seek(self._offset)
            # Later data is left for the next call, as the writer may be faster than this loop.
            left = os.fstat(file.fileno()).st_size - self._offset
            while left > 0 and (data := file.read(min(left, CHUNK_BYTES))):
                left -= len(data)
                self._offset += len(data)
                yield from self._events(data)

    def _events(self, data: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
        for line in lines:
            event = decode(line, self._nonce)
            if event is not None:
                yield event
