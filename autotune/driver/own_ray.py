"""The processes of a Ray that we have started: seen to live, and none of them left at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

from autotune.errors import RayUnavailable
from autotune.launch import enclosure, guard, sweep
from autotune.protocol.lines import open_plain
from autotune.shortage import address_space, address_space_bytes, size_text

MARK = "AUTOTUNE_RAY"
"""Variable of the processes of a Ray of ours: the folder of the study that it was started for."""

FOLDER = "at-ray-"
"""How the name of a temporary folder begins that we give to a Ray of ours."""

OWNER = "owner"
"""File in such a folder: the mark of the study whose Ray it is."""

SNAPSHOTS = "tune"
"""Folder of a study: what Ray Tune keeps while it runs."""

_WORKER = "ray::"
"""How Ray's workers and agents call themselves once they have begun; the folder is gone from there then."""

_ESSENTIAL = {"gcs_server": "head", "raylet/raylet": "raylet"}
_POLL_S = 0.05

ADDRESS_SPACE_BYTES = 3 * 2**30
"""With 1.4 GiB Ray 2.x aborted this process or did not start; with 3.8 GiB it ran (2026-11-27, 2 cores)."""

ENDING_S = 5.0
"""A killed process is gone within milliseconds; one that waits inside the kernel is not waited for."""


class OwnRay:
    """Knows a Ray's processes by their descent from those that name its folder.

    Args:
        driver: Pid of the process that started it.
        folder: Given to Ray as its temporary folder; on the command line of what it starts first.
    """

    def __init__(self, driver: int, folder: str) -> None:
        self._roots = [pid for pid in sweep.descendants(driver) if folder in " ".join(_words(pid))]
        self._seen: dict[int, int] = {}
        self._missed: set[int] = set()
        self._essential = {
            pid: (sweep.start_ticks(pid), name)
            for pid in self._roots
            for word, name in _ESSENTIAL.items()
            if word in _words(pid)[0]
        }
        self.look()

    def look(self) -> str:
        """Take note of what has been started meanwhile; the name of a part that has died, or "".

        A death is told at the second look that finds it: to name a living Ray dead ends the search.
        """
        found = {*self._roots, *(p for root in self._roots for p in sweep.descendants(root))}
        # Trials end by themselves when whoever launched them does, and better than by a kill.
        guards = {pid for pid in found if guard.__file__ in _words(pid)}
        trials = {pid for one in guards for pid in sweep.descendants(one)}
        for pid in found - guards - trials:
            if ticks := sweep.start_ticks(pid):
                self._seen[pid] = ticks
        for pid in guards | trials:
            # Between fork and exec it looked like the worker that started it.
            self._seen.pop(pid, None)
        missing = {pid for pid, (ticks, _) in self._essential.items() if _is_gone(pid, ticks)}
        dead, self._missed = missing & self._missed, missing
        return next((name for pid, (_, name) in self._essential.items() if pid in dead), "")

    def end(self, wait_s: float) -> None:
        """Kill what is left of it after so many seconds."""
        until_s = time.monotonic() + wait_s
        while (left := self._left()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        sweep.send([pid for pid in left if guard.__file__ not in _words(pid)], signal.SIGKILL)

    def _left(self) -> list[int]:
        # Copied: another thread may be looking.
        return [pid for pid, ticks in list(self._seen.items()) if _lives(pid, ticks)]


def refuse_small_address_space() -> None:
    """Refuse to start a Ray that would end this process: its C++ part aborts where it gets no threads.

    Raises:
        RayUnavailable: The shell's limit is too small for a local Ray.
    """
    limit_bytes = address_space_bytes()
    if limit_bytes is not None and limit_bytes < ADDRESS_SPACE_BYTES:
        message = f"{address_space()}, and a local Ray needs {size_text(ADDRESS_SPACE_BYTES)}"
        raise RayUnavailable(
            message, hint="allow more: ulimit -v unlimited; or do without Ray: --driver inline"
        )


def mark_of(study_dir: Path) -> str:
    """The value of `MARK` for a study: its place, since a copy of it has the same name and id."""
    return str(Path(study_dir).resolve())


def end_marked_rays(mark: str, *, bound_s: float = ENDING_S) -> None:
    """Kill what the Ray of a dead driver has left: its agents may wait for long for one that is gone.

    Only what is Ray's by its command line as well: a variable may have been inherited by anything. An agent
    that has given itself a title may have written it over the variables that it was started with; such a one
    is known by the files that it has open.

    Args:
        mark: From `mark_of`; nobody else may drive that study now.
        bound_s: How long to go on until nothing is left.
    """
    until_s = time.monotonic() + bound_s
    while left := _of(mark):
        sweep.send(left, signal.SIGKILL)
        if time.monotonic() >= until_s:
            return
        time.sleep(_POLL_S)


def sign(folder: str, mark: str) -> None:
    """Note in the folder of a Ray of ours whose it is."""
    Path(folder, OWNER).write_text(mark, encoding="utf-8", errors="surrogateescape")


def remove_marked_folders(mark: str) -> None:
    """Remove the temporary folders of Rays that a dead driver of this study has left.

    Copies of Tune's snapshots lie in them, with the user's environment as trials were given it.

    Args:
        mark: From `mark_of`; nothing of these Rays may live any more.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError):
            # Anybody may make a folder of such a name, and say that it is ours.
            is_own = folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
            if is_own and _owner(str(folder)) == mark:
                enclosure.remove(folder)


def _of(mark: str) -> list[int]:
    """Living processes of Rays that were started for this study."""
    marked = {pid for pid in sweep.marked(mark, MARK) if _is_rays(pid)}
    titled = [pid for pid in sweep.all_pids() if pid not in marked and _words(pid)[0].startswith(_WORKER)]
    return [
        *marked,
        *(pid for pid in titled if not sweep.is_zombie(pid) and mark in map(_owner, _folders(pid))),
    ]


def _folders(pid: int) -> set[str]:
    """Temporary folders of Rays of ours in which a process has files open."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                before, begins, rest = str(file.readlink()).partition(f"/{FOLDER}")
                if begins:
                    found.add(f"{before}{begins}{rest.partition('/')[0]}")
    return found


def _owner(folder: str) -> str:
    """The mark of the study whose Ray has this folder, "" where nothing says it."""
    # Not anything but a file: a pipe that somebody has put there would be waited for.
    with contextlib.suppress(OSError), open_plain(Path(folder, OWNER)) as file:
        return file.read().decode("utf-8", errors="surrogateescape")
    return ""


def _is_rays(pid: int) -> bool:
    words = _words(pid)
    return words[0].startswith(_WORKER) or any(FOLDER in word for word in words)


def _lives(pid: int, ticks: int) -> bool:
    """The same process, and not only its remains."""
    return bool(ticks) and sweep.start_ticks(pid) == ticks and not sweep.is_zombie(pid)


def _is_gone(pid: int, ticks: int) -> bool:
    """It has ended for sure. Where nothing can be read, as without a free descriptor, it has not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    if not sweep.stat_fields(pid):
        return False
    return sweep.is_zombie(pid) or bool(ticks and sweep.start_ticks(pid) not in (0, ticks))


def _words(pid: int) -> list[str]:
    """The command line; one empty word where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
