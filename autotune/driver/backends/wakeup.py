"""Wakeup between processes of one machine, in place of polling."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Wakeup:
    """Socket on which a process waits for a wakeup.

    Args:
        folder: A private folder for the socket, whose path may have 107 bytes.

    Raises:
        OSError: The socket cannot be created.
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
        """Wait for a wakeup up to this time; return whether one came. Earlier wakeups count, as one."""
        # `select` takes no descriptor above 1023, and the program may have more open files.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        rung = bool(poll.poll(seconds * 1000.0))
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(16):
                rung = True
        return rung

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def ring(path: str) -> None:
    """Wake the waiting process, if any. Non-blocking; OS errors are ignored."""
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(b".", path)
