"""Keeper process: ends a local Ray after its driver has ended, for any reason, and removes its folder.

Linux kills Ray's head and raylet with the driver, but their agents wait for the raylet for up to two minutes,
and the folder stays. The keeper waits for the lock on that folder, which the driver holds
(`autotune.driver.backends.local_ray.claim`). Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from autotune.driver.backends.local_ray import CLAIM, claim, end_ray
from autotune.launch.workspace import isolation

KEEPS = "AUTOTUNE_KEEPS"
"""Environment variable of the keeper with the folder. A command line would identify it as Ray's."""

ENDING_S = 10.0
"""Time for the keeper of an ended Ray: one scan of the processes."""

_ROOT = str(Path(__file__).parents[3])
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals sent to a whole job, also as a notice ahead of its end. The keeper ends with its driver."""


class Keeper:
    """Locks the folder of a Ray and starts its keeper.

    Args:
        folder: Temporary folder of a Ray that is about to start.
        study_dir: The study that it is started for.
    """

    def __init__(self, folder: str, study_dir: Path) -> None:
        self._claim = claim(folder, study_dir)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": _ROOT, KEEPS: folder},
        )

    @property
    def pid(self) -> int:
        """Pid of the keeper."""
        return self._process.pid

    def close(self) -> None:
        """End the Ray and remove its folder now."""
        os.close(self._claim)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)


def keep(folder: str) -> None:
    """Wait until the driver has ended; then end its Ray and remove the folder."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError), Path(folder, CLAIM).open("rb") as file:
        # Held until the end, so that no other process cleans up meanwhile.
        fcntl.flock(file, fcntl.LOCK_EX)
        end_ray(folder)
        isolation.remove(Path(folder))


if __name__ == "__main__":
    keep(os.environ[KEEPS])
