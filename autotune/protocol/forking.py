"""What a launcher and its fork server say to each other, packet by packet; standard library only.

The server is a process of the user's interpreter that has the script's heaviest libraries loaded. One
question, one answer, each a JSON object:

- first of all what the server is to be (see `ForkServer` and `Zygote.prepare`) -> ``{"lent_bytes": ...}``,
  or ``{"refused": why}`` and the server ends;
- ``{"fork": uid}`` with descriptors (orders, life pipe, log, locks) -> ``{"pid": ...}`` of the keeper, or
  ``{"refused": why}``;
- ``{"reap": pid}`` for a keeper that has ended -> ``{"status": ...}``, as `os.waitpid` has it.

The end of the connection is the end of the server.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARK_CHARS: Final = 200
"""Room in the environment block of the server for each mark: a forked process has no block of its own, so
that the mark by which it is found has to be written over what stands there."""

BLANK: Final = "-" * MARK_CHARS
PACKET_BYTES: Final = 64 * 1024
MOST_FDS: Final = 64


def channel() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """One packet.

    Args:
        to: From `channel`.
        message: Small.
        fds: Descriptors that the other side gets copies of.

    Raises:
        OSError: The other side has gone, or a packet of this size cannot be sent.
    """
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(to, [data], list(fds))
    else:
        to.send(data)


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next packet with its descriptors; None at the end of the connection.

    Raises:
        OSError: Nothing came in the time that the channel allows.
        ValueError: What came is no message.
    """
    data, fds, flags, _ = socket.recv_fds(source, PACKET_BYTES, MOST_FDS)
    if not data:
        return None, fds
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        message = "a packet was too large"
        raise ValueError(message)
    return json.loads(data), fds
