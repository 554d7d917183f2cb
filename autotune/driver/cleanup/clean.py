"""Files that searches have left on this machine, with their size, and their removal.

Only folders created by searches of this account are considered: below the home of studies, and by their names
in the temporary folder. Links are not followed. Studies in use, and those of other accounts, are not changed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.driver.backends.local_ray import SNAPSHOTS
from autotune.driver.cleanup.dead_trials import end_dead_trials
from autotune.errors import AutotuneError, StoreError, StudyLocked, UsageError
from autotune.launch.fork_pool import FORKS
from autotune.launch.guard import process_tree
from autotune.launch.workspace import isolation
from autotune.protocol.plan import PROFILE_NSYS, PROFILE_TRACE
from autotune.store.owners import foreign
from autotune.store.paths import JOURNAL_FILE, find_study, home, is_study_id, studies
from autotune.store.study_lock import is_locked, locked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TRIALS, CACHES, STUDY, TEMPORARY = "trials", "caches", "study", "temporary"
_PARTS: Final = {"trials": TRIALS, FORKS: TRIALS, SNAPSHOTS: TRIALS, "cache": CACHES, "lib": CACHES}
"""Folders of a study that are needed only while it runs, and their kind."""

_TRIAL: Final = re.compile(r"at-(t\d+-a\d+-[0-9a-f]{6})")
_PROBE: Final = re.compile(r"\.autotune-probe-.+")
_APPLY: Final = re.compile(r"autotune-apply-.+")
_RAY: Final = re.compile(r"at-(ray|tune)-.+")
STARTING_S: Final = 60.0
"""A search under another home may have made a trial's folder and not started its process yet."""

UNTOUCHED_S: Final = 24 * 3600.0
"""A folder without a known owner is abandoned after this time without writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One removable folder.

    Args:
        kind: ``trials``, ``caches``, ``study`` (the whole of it) or ``temporary``.
        size_bytes: Space on the disk.
        study: Label of its study, the id if it has none; empty for a temporary folder.
        spared: Names in it that are retained.
    """

    kind: str
    path: Path
    size_bytes: int
    study: str = ""
    spared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """Removable folders, and retained ones with the reason."""

    leftovers: tuple[Leftover, ...]
    kept: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def size_bytes(self) -> int:
        """Total size of the removable folders."""
        return sum(leftover.size_bytes for leftover in self.leftovers)


def find(names: Sequence[str] = (), *, older_than_s: float | None = None) -> StoredItem:
    """Return the removable folders.

    Args:
        names: Studies to remove whole, by label, id or the beginning of one.
        older_than_s: Remove studies whole that were not written to for this time. With neither,
            every study keeps its journal, its best.yaml and requested profiles, and loses
            the other folders of its trials and its caches. Leftovers of dead searches in the temporary
            folder are removed as well.

    Raises:
        StudyNotFound: No study, or more than one, has this name.
        UsageError: The name is a folder elsewhere.
    """
    labels = {found.study_id: found.label for found in studies()}
    wanted = {_own(find_study(name)) for name in names}
    leftovers: list[Leftover] = []
    kept: dict[str, str] = {}
    running: set[str] = set()
    for path in _study_folders():
        label = labels.get(path.name) or path.name
        if is_locked(path):
            running.add(path.name)
            if path in wanted or not (wanted or older_than_s is not None):
                kept[label] = "it is being written to"
        elif path in wanted or (older_than_s is not None and _idle_s(path) > older_than_s):
            leftovers.append(Leftover(kind=STUDY, path=path, size_bytes=_size(path), study=label))
        elif not wanted and older_than_s is None:
            parts = list(_parts(path, label))
            leftovers += parts
            if any(part.spared for part in parts):
                kept[label] = "its profiles are kept with the study"
    if not wanted and older_than_s is None:
        leftovers += _temporary(running)
    return StoredItem(leftovers=tuple(leftovers), kept=kept)


def remove(found: StoredItem) -> dict[str, str]:
    """Remove the folders, with the studies locked.

    Returns:
        Path -> reason, for folders that could not be removed.
    """
    left: dict[str, str] = {}
    # Its records are in the removed folder.
    end_dead_trials()
    for leftover in found.leftovers:
        try:
            if leftover.kind == TEMPORARY:
                _remove(leftover.path)
            else:
                study = leftover.path if leftover.kind == STUDY else leftover.path.parent
                if reason := foreign(study):
                    raise StoreError(f"{study}: {reason}")
                with locked(study):
                    _remove(leftover.path, leftover.spared)
        except StudyLocked:
            left[str(leftover.path)] = "a search is writing to it"
        except (AutotuneError, OSError) as error:
            left[str(leftover.path)] = str(error)
        else:
            rest = set(_names(leftover.path)) - set(leftover.spared)
            if leftover.path.exists() and (rest or not leftover.spared):
                left[str(leftover.path)] = "parts of it could not be removed"
    return left


def _remove(path: Path, spared: Sequence[str] = ()) -> None:
    if path.is_symlink() or not path.is_dir():
        message = "it is a link or no longer a folder"
        raise OSError(message)
    parts = [path / name for name in _names(path) if name not in spared] if spared else [path]
    for part in parts:
        isolation.remove(part)


def _own(path: Path) -> Path:
    """Return the folder if it is below the home; studies elsewhere are not removed."""
    if path.parent != home() / "studies" or not is_study_id(path.name):
        raise UsageError(
            f"{path} does not lie in {home() / 'studies'}", hint="name the study by its label or id"
        )
    return path


def _study_folders() -> Iterator[Path]:
    try:
        with os.scandir(home() / "studies") as entries:
            names = sorted(e.name for e in entries if is_study_id(e.name) and e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        # In a shared home, other users have studies too.
        if not foreign(home() / "studies" / name):
            yield home() / "studies" / name


def _parts(path: Path, label: str) -> Iterator[Leftover]:
    for name, kind in _PARTS.items():
        part = path / name
        if not part.is_dir() or part.is_symlink():
            continue
        spared = _profiles(part) if kind == TRIALS else ()
        if set(_names(part)) - set(spared):
            size_bytes = _size(part) - sum(_size(part / each) for each in spared)
            yield Leftover(kind=kind, path=part, size_bytes=size_bytes, study=label, spared=spared)


def _profiles(trials: Path) -> tuple[str, ...]:
    """Return folders of trials with a profile, which the user requested."""
    files = (PROFILE_TRACE, PROFILE_NSYS)
    return tuple(name for name in _names(trials) if any((trials / name / file).is_file() for file in files))


def _names(folder: Path) -> list[str]:
    """Return the entries of a folder; empty if it is unreadable or missing."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _idle_s(path: Path) -> float:
    """Return the seconds since the last write to a study's journal, or to the study without one."""
    newest = _modified(path / JOURNAL_FILE) or _modified(path)
    ahead = path / f"{JOURNAL_FILE}-wal"
    # Reading a journal may create an empty one.
    if ahead.is_file() and ahead.stat().st_size:
        newest = max(newest, _modified(ahead))
    return time.time() - newest


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Return the bytes on the disk, including links, which are not followed."""
    total = 0
    for place, names, files in os.walk(folder):
        for name in (*names, *files):
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 (faster than `Path` for many files)
            except OSError:
                continue
    return total


# The temporary folder -----------------------------------------------------------------------


def _temporary(running: set[str]) -> Iterator[Leftover]:
    places = [Path(tempfile.gettempdir()), *(path / "trials" for path in _study_folders())]
    for place in places:
        if place.parent.name in running:
            continue
        for path in _own_folders(place):
            if _is_dead(path, running):
                yield Leftover(kind=TEMPORARY, path=path, size_bytes=_size(path))


def _own_folders(place: Path) -> Iterator[Path]:
    """Yield folders with names of autotune that belong to this user; others may use the same names."""
    patterns = (_TRIAL, _PROBE, _APPLY, _RAY) if place == Path(tempfile.gettempdir()) else (_PROBE,)
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if any(pattern.fullmatch(entry.name) for pattern in patterns):
            try:
                mine = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if mine and mine.st_uid == os.getuid():
                yield Path(entry.path)


def _is_dead(path: Path, running: set[str]) -> bool:
    """Return whether no living process needs this folder."""
    trial = _TRIAL.fullmatch(path.name)
    if trial is not None:
        uid = trial[1]
        is_open = any((home() / "studies" / study / "trials" / uid).is_dir() for study in running)
        return not is_open and not process_tree.marked(uid) and _untouched_s(path) > STARTING_S
    if _APPLY.fullmatch(path.name):
        owner = _apply_owner(path)
        return not _lives(owner) if owner else _untouched_s(path) > UNTOUCHED_S
    return _untouched_s(path) > UNTOUCHED_S and not _named_by_a_process(path)


def _apply_owner(path: Path) -> int:
    """Return the pid of the `autotune apply` that made this folder, 0 if unknown."""
    try:
        nonce = json.loads((path / "plan.json").read_bytes()).get("nonce", "")
    except (OSError, ValueError, AttributeError):
        return 0
    number = str(nonce).removeprefix("apply-")
    return int(number) if number.isdecimal() else 0


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not process_tree.is_zombie(pid)


def _untouched_s(path: Path) -> float:
    """Return the seconds since the last write in the upper two levels of a folder."""
    newest = _modified(path)
    try:
        for child in (*path.iterdir(), *path.glob("*/*")):
            newest = max(newest, _modified(child))
    except OSError:
        # It is being modified, or may not be read, so it counts as in use.
        return 0.0
    return time.time() - newest


def _named_by_a_process(path: Path) -> bool:
    """Return whether a process names it: Ray's session folder, or the folder of its token."""
    name = os.fsencode(path.name)
    for pid in process_tree.all_pids():
        for file in ("cmdline", "environ"):
            try:
                if name in Path(f"/proc/{pid}/{file}").read_bytes():
                    return True
            except OSError:
                continue
    return False
