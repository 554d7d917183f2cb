"""Liveness checks of the head of an existing cluster."""

from __future__ import annotations

import errno
import math
import socket
import time

EVERY_S = 10.0
"""Interval between checks. Ray ends a process whose head has been away for a minute.

Two checks fit in that time, and a restarted head has this long.
"""

WITHIN_S = 5.0
_NOBODY = frozenset(
    (
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN),
    )
)
"""Errors of the remote side; all others, as a lack of descriptors, are local."""


class Head:
    """Checks a cluster's head by opening and closing a connection.

    Args:
        address: Host and port, as Ray names its own; the name is resolved once, here.
        every_s: Least time between checks.
        within_s: Time limit for the connection.

    Raises:
        OSError, ValueError: No such address.
    """

    def __init__(self, address: str, *, every_s: float = EVERY_S, within_s: float = WITHIN_S) -> None:
        self.address = address
        self._every_s = every_s
        self._within_s = within_s
        host, _, port = address.rpartition(":")
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        self._family, _, _, _, self._place = found[0]
        self._looked_s = -math.inf
        self._missed = False

    def look(self) -> str:
        """Return ``head`` after two failed checks in a row; else an empty string."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._every_s:
            return ""
        missed = not self._answers()
        self._looked_s = time.monotonic()
        is_dead, self._missed = missed and self._missed, missed
        return "head" if is_dead else ""

    def _answers(self) -> bool:
        try:
            with socket.socket(self._family, socket.SOCK_STREAM) as line:
                line.settimeout(self._within_s)
                line.connect(self._place)
        except TimeoutError:
            return False
        except OSError as error:
            return error.errno not in _NOBODY
        return True
