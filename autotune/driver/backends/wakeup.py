"""Something has happened, told from process to process of one machine: waited for instead of asked about."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Wakeup:
    """A place to wait at.

    Args:
        folder: Of ours alone. The place is a socket in it, whose path may have 107 bytes.

    Raises:
        OSError: There can be no socket.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "bell")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(self.path)
        except BaseException:
            self._socket.close()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait until it is rung, at most so long; whether it was. Rings of before count, all as one."""
        # Not by `select`, which takes no descriptor from 1024 on: a program may have that many open.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        rung = bool(poll.poll(seconds * 1000.0))
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(16):
                rung = True
        return rung

    def close(self) -> None:
        """Nobody waits any more."""
        self._socket.close()


def ring(path: str) -> None:
    """Wake who waits there; nobody may. Never waits itself, and never raises for what the system refuses."""
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.setblocking(False)
        ours.sendto(b".", path)
