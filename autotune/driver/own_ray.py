"""The processes of a Ray that we have started: seen to live, and none of them left at the end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from autotune.launch import guard, sweep

MARK = "AUTOTUNE_RAY"
"""Variable of the processes of a Ray of ours: the study that it was started for."""

_ESSENTIAL = {"gcs_server": "head", "raylet/raylet": "raylet"}
_POLL_S = 0.05


class OwnRay:
    """Knows a Ray's processes by their descent from those that name its folder.

    Args:
        driver: Pid of the process that started it.
        folder: Given to Ray as its temporary folder; on the command line of what it starts first.
    """

    def __init__(self, driver: int, folder: str) -> None:
        self._roots = [pid for pid in sweep.descendants(driver) if folder in " ".join(_words(pid))]
        self._seen: dict[int, int] = {}
        self._essential = {
            pid: (sweep.start_ticks(pid), name)
            for pid in self._roots
            for word, name in _ESSENTIAL.items()
            if word in _words(pid)[0]
        }
        self.look()

    def look(self) -> str:
        """Take note of what has been started meanwhile; the name of a part that has died, or ""."""
        found = {*self._roots, *(p for root in self._roots for p in sweep.descendants(root))}
        # Trials end by themselves when whoever launched them does, and better than by a kill.
        guards = {pid for pid in found if guard.__file__ in _words(pid)}
        trials = {pid for one in guards for pid in sweep.descendants(one)}
        for pid in found - guards - trials:
            self._seen.setdefault(pid, sweep.start_ticks(pid))
        return next((name for pid, (ticks, name) in self._essential.items() if not _lives(pid, ticks)), "")

    def end(self, wait_s: float) -> None:
        """Kill what is left of it after so many seconds."""
        until_s = time.monotonic() + wait_s
        while (
            left := [p for p, ticks in self._seen.items() if _lives(p, ticks)]
        ) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        sweep.send(left, signal.SIGKILL)


def end_marked_rays(study: str) -> None:
    """Kill what the Ray of a dead driver has left: its agents may wait for long for one that is gone.

    Args:
        study: As in `MARK`; nobody else may drive it now.
    """
    sweep.send(sweep.marked(study, MARK), signal.SIGKILL)


def _lives(pid: int, ticks: int) -> bool:
    """The same process, and not only its remains."""
    return bool(ticks) and sweep.start_ticks(pid) == ticks and not sweep.is_zombie(pid)


def _words(pid: int) -> list[str]:
    """The command line; one empty word where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
