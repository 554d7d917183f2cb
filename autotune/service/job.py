"""Supervisor of one job's process: ``python -m autotune.service.job FOLDER``.

Holds a lock in the folder while it lives, forwards SIGTERM, limits the output, and writes the exit code last.
Uses the standard library only: it starts fast and outlives the service.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEGAN, ENDED, LOCK, LOG, PLAN, STOP = "began", "exit", "lock", "output.log", "job.json", "stop"
"""Files of a job's folder."""

MOST_BYTES = 64 * 1024 * 1024
"""Limit of a job's output; later output is counted and dropped."""

STOPPED = 128 + signal.SIGTERM
"""Exit code of a job that was stopped before it began."""

GRACE_S = 20.0
"""Seconds from the stop request to SIGKILL: a preempted search releases its devices within 30 s."""
_POLL_S = 0.5

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def main(folder: str) -> int:
    """Run the job of a folder and return its exit code.

    A second supervisor of the same folder ends at once, also if the job was started or stopped before.
    """
    place = Path(folder)
    lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    if (place / BEGAN).exists():
        return 0
    _write(place / BEGAN, str(os.getpid()))
    if (place / STOP).exists():
        _write(place / ENDED, str(STOPPED))
        return STOPPED
    plan = json.loads((place / PLAN).read_text(encoding="utf-8"))
    stopped: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, _frame: Any) -> None:
        stopped.append(number)
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        child = subprocess.Popen(
            plan["command"],
            cwd=plan["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (single-threaded here)
        )
    except OSError as error:
        (place / LOG).write_text(f"the job could not be started: {error}\n", encoding="utf-8")
        _write(place / ENDED, "70")
        return 70
    if stopped:
        child.send_signal(signal.SIGTERM)
    copier = threading.Thread(target=_copy, args=(child, place / LOG), daemon=True)
    copier.start()
    code = _ended(child, place / STOP)
    # Processes left by the search may hold the pipe open.
    copier.join(2.0)
    code = 128 - code if code < 0 else code
    _write(place / ENDED, str(code))
    return code


def _ended(child: subprocess.Popen[bytes], stop: Path) -> int:
    """Return the child's exit code; end the child if the service has left a stop file.

    A file reaches a job on any node with the storage, and gives it more time than a stop by Ray.
    """
    killed_s = 0.0
    while True:
        try:
            return child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        if not killed_s and stop.exists():
            child.send_signal(signal.SIGTERM)
            killed_s = time.monotonic() + GRACE_S
        elif killed_s and time.monotonic() > killed_s:
            # The guards of its trials end with it.
            child.kill()


def _die_with_parent() -> None:
    """Send SIGTERM to the search if its supervisor is killed: a new one would find the journal locked."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, linux/prctl.h


def _copy(child: subprocess.Popen[bytes], path: Path) -> None:
    written = 0
    assert child.stdout is not None
    with os.fdopen(os.open(path, _NEW, 0o600), "wb", buffering=0) as log:
        while chunk := os.read(child.stdout.fileno(), 65536):
            kept = chunk[: max(0, MOST_BYTES - written)]
            if kept:
                log.write(kept)
            written += len(chunk)


def _write(path: Path, text: str) -> None:
    """Write atomically."""
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, _NEW, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
