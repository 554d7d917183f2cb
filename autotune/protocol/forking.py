"""Messages between a launcher and its fork server, one packet each; standard library only.

The server is a process of the user's interpreter that has imported the script's heaviest libraries. Each
request has one answer, both JSON objects:

- first the configuration of the server (see `ForkServer` and `Zygote.prepare`) -> ``{"lent_bytes": ...}``,
  or ``{"refused": why}`` and the server ends;
- ``{"fork": uid}`` with descriptors (orders, life pipe, log, locks) -> ``{"pid": ...}`` of the keeper, or
  ``{"refused": why}``;
- ``{"reap": pid}`` for a keeper that has ended -> ``{"status": ...}``, as returned by `os.waitpid`.

The server ends with the connection.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARK_CHARS: Final = 200
"""Space for each mark in the environment block of the server.

A forked process has no block of its own, so the mark that identifies it overwrites this space.
"""

BLANK: Final = "-" * MARK_CHARS
PACKET_BYTES: Final = 64 * 1024
MOST_FDS: Final = 64


def channel() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one packet.

    Args:
        to: From `channel`.
        message: Must be small.
        fds: Descriptors duplicated for the other side.

    Raises:
        OSError: The other side has ended, or a packet of this size cannot be sent.
    """
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(to, [data], list(fds))
    else:
        to.send(data)


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next packet with its descriptors; None at the end of the connection.

    Raises:
        OSError: The channel's timeout expired.
        ValueError: The packet is not a message.
    """
    data, fds, flags, _ = socket.recv_fds(source, PACKET_BYTES, MOST_FDS)
    if not data:
        return None, fds
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        message = "a packet was too large"
        raise ValueError(message)
    return json.loads(data), fds
