"""Processes of a Ray started by autotune: checked for deaths, and ended completely."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import time
from pathlib import Path

from autotune.errors import RayUnavailable
from autotune.launch.guard import guard, process_tree
from autotune.launch.workspace import isolation
from autotune.protocol.lines import open_plain
from autotune.shortage import address_space, address_space_bytes, size_text

MARK = "AUTOTUNE_RAY"
"""Environment variable in processes of an own Ray: its temporary folder."""

FOLDER = "at-ray-"
"""Prefix of an own Ray's temporary folder."""

CLAIM = "claim"
"""File in that folder: location of the study that uses this Ray. Its driver holds a lock on it."""

SNAPSHOTS = "tune"
"""Folder of a study for Ray Tune's files while it runs."""

_WORKER = "ray::"
"""Prefix of the process title of Ray's workers and agents, which replaces their command line."""

_ESSENTIAL = {"gcs_server": "head", "raylet/raylet": "raylet"}
_POLL_S = 0.05

ADDRESS_SPACE_BYTES = 3 * 2**30
"""With 1.4 GiB Ray 2.x aborted this process or did not start; with 3.8 GiB it ran (2026-11-27, 2 cores)."""

ENDING_S = 5.0
"""A killed process ends within milliseconds; one that waits inside the kernel is not waited for."""


class OwnRay:
    """Identifies a Ray's processes, as descendants of those that name its folder.

    Args:
        driver: Pid of the process that started it.
        folder: Ray's temporary folder; on the command line of the first processes.
    """

    def __init__(self, driver: int, folder: str) -> None:
        self._roots = [pid for pid in process_tree.descendants(driver) if folder in " ".join(_words(pid))]
        self._seen: dict[int, int] = {}
        self._missed: set[int] = set()
        self._essential = {
            pid: (process_tree.start_ticks(pid), name)
            for pid in self._roots
            for word, name in _ESSENTIAL.items()
            if word in _words(pid)[0]
        }
        self.look()

    def look(self) -> str:
        """Record new processes; return the name of a part that has died, or "".

        A death is reported when two checks find it, as a false report ends the search.
        """
        found = {*self._roots, *(p for root in self._roots for p in process_tree.descendants(root))}
        # Trials end by themselves after their launcher, which is better than a kill.
        guards = {pid for pid in found if guard.__file__ in _words(pid)}
        trials = {pid for one in guards for pid in process_tree.descendants(one)}
        for pid in found - guards - trials:
            if ticks := process_tree.start_ticks(pid):
                self._seen[pid] = ticks
        for pid in guards | trials:
            # Between fork and exec it resembled the worker that started it.
            self._seen.pop(pid, None)
        missing = {pid for pid, (ticks, _) in self._essential.items() if _has_ended(pid, ticks)}
        dead, self._missed = missing & self._missed, missing
        return next((name for pid, (_, name) in self._essential.items() if pid in dead), "")

    def end(self, wait_s: float) -> None:
        """Kill the remaining processes after a wait."""
        until_s = time.monotonic() + wait_s
        while (left := self._left()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        process_tree.send([pid for pid in left if guard.__file__ not in _words(pid)], signal.SIGKILL)

    def _left(self) -> list[int]:
        # Copied, as another thread may modify it.
        return [pid for pid, ticks in list(self._seen.items()) if _lives(pid, ticks)]


def temporary() -> str:
    """Return the parent of Ray's folders, without links, as open files of processes show it."""
    return os.path.realpath(tempfile.gettempdir())


def refuse_small_address_space() -> None:
    """Refuse to start a Ray that would abort this process, as its C++ code does without threads.

    Raises:
        RayUnavailable: The shell's limit is too small for a local Ray.
    """
    limit_bytes = address_space_bytes()
    if limit_bytes is not None and limit_bytes < ADDRESS_SPACE_BYTES:
        message = f"{address_space()}, and a local Ray needs {size_text(ADDRESS_SPACE_BYTES)}"
        raise RayUnavailable(
            message, hint="allow more: ulimit -v unlimited; or do without Ray: --driver inline"
        )


def claim(folder: str, study_dir: Path) -> int:
    """Lock the temporary folder of a Ray for this process; the lock ends with the process.

    Args:
        folder: Folder of the Ray that is about to start.
        study_dir: The study that it is started for.

    Returns:
        The descriptor that holds the lock; not inherited by child processes.
    """
    # Renamed after locking: an unlocked file of this name means a dead driver.
    draft = Path(folder, f"{CLAIM}.part")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(fd, os.fsencode(Path(study_dir).resolve()))
    fcntl.flock(fd, fcntl.LOCK_EX)
    draft.rename(Path(folder, CLAIM))
    return fd


def end_ray(folder: str, *, bound_s: float = ENDING_S) -> None:
    """Kill the processes of an own Ray, as its agents wait up to two minutes for a lost raylet.

    Only processes that also belong to Ray by their command line: any program can inherit a variable. An agent
    that has set a title may have overwritten its variables; it is identified by its open files.

    Args:
        folder: The temporary folder of that Ray.
        bound_s: Time limit.
    """
    until_s = time.monotonic() + bound_s
    while left := _of(folder):
        process_tree.send(left, signal.SIGKILL)
        if time.monotonic() >= until_s:
            return
        time.sleep(_POLL_S)


def end_abandoned_rays(study_dir: Path | None = None) -> None:
    """End the Rays of dead drivers on this machine and remove their folders.

    Args:
        study_dir: Rays of this study count as abandoned, as no other process may drive it now.
    """
    study = b"" if study_dir is None else os.fsencode(Path(study_dir).resolve())
    for folder in Path(temporary()).glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError):
            # Any user can create a folder of this name.
            is_own = folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
            if is_own and _is_abandoned(folder, study):
                end_ray(str(folder))
                isolation.remove(folder)


def _is_abandoned(folder: Path, study: bytes) -> bool:
    """Return whether a driver that has ended claimed this folder.

    Raises:
        OSError: No driver has claimed it.
    """
    # A pipe in place of the file would block.
    with open_plain(folder / CLAIM) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return bool(study) and file.read() == study
        return True


def _of(folder: str) -> list[int]:
    """Return the living processes of the Ray with this folder."""
    marked = {pid for pid in process_tree.marked(folder, MARK) if _is_rays(pid, folder)}
    titled = [
        pid for pid in process_tree.all_pids() if pid not in marked and _words(pid)[0].startswith(_WORKER)
    ]
    return [*marked, *(pid for pid in titled if not process_tree.is_zombie(pid) and _has_open(pid, folder))]


def _has_open(pid: int, folder: str) -> bool:
    """Return whether a process has an open file below this folder."""
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith(f"{folder}/"):
                    return True
    return False


def _is_rays(pid: int, folder: str) -> bool:
    words = _words(pid)
    return words[0].startswith(_WORKER) or any(folder in word for word in words)


def _lives(pid: int, ticks: int) -> bool:
    """Return whether the process is alive, with the same start time, and is no zombie."""
    return bool(ticks) and process_tree.start_ticks(pid) == ticks and not process_tree.is_zombie(pid)


def _has_ended(pid: int, ticks: int) -> bool:
    """Return whether a process has certainly ended; False if that cannot be read."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    if not process_tree.stat_fields(pid):
        return False
    return process_tree.is_zombie(pid) or bool(ticks and process_tree.start_ticks(pid) not in (0, ticks))


def _words(pid: int) -> list[str]:
    """Return the command line; one empty word if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
