"""The head of a cluster that is none of ours: asked now and then whether anybody still listens there."""

from __future__ import annotations

import errno
import math
import socket
import time

EVERY_S = 10.0
"""Ray ends a process whose head has been away for a minute: both looks come well before that, and a head
that is only restarted has this long."""

WITHIN_S = 5.0
_NOBODY = frozenset(
    (
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN),
    )
)
"""What is said of the other side; everything else, as having no free descriptor, is said of ours."""


class Head:
    """Knows where a cluster's head listens; a look connects, says nothing and hangs up.

    Args:
        address: Host and port, as Ray names its own; its name is looked up here and never again.
        every_s: At most one look in so many seconds.
        within_s: So long it may take to answer.

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
        """``head`` where it did not answer twice, one look after the other; else empty."""
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
