"""Time for which a thread waits for a CPU, as the kernel reports it."""

from __future__ import annotations

import os
import threading


class QueueDelay:
    """Time for which this thread was ready to run and waited for a CPU, from the kernel."""

    def __init__(self) -> None:
        self._schedstat = _open_schedstat()

    @property
    def known(self) -> bool:
        """Return whether the kernel provides it."""
        return self._schedstat >= 0

    def ns(self) -> int:
        """Nanoseconds so far; 0 throughout where the kernel does not report them."""
        if self._schedstat < 0:
            return 0
        try:
            return int(os.pread(self._schedstat, 96, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Give back what is held of the system."""
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


def _open_schedstat() -> int:
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
