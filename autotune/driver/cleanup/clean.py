"""What searches have left on this machine, how large it is, and its removal.

Only folders that searches of this account made are ever looked at: below the home of studies, and by their
names in the temporary folder. Nothing is reached through a link, and nothing of a study that is being
written to, or that belongs to another account, is touched.
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
from autotune.store.journal import is_locked, locked
from autotune.store.owners import foreign
from autotune.store.paths import JOURNAL_FILE, find_study, home, is_study_id, studies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TRIALS, CACHES, STUDY, TEMPORARY = "trials", "caches", "study", "temporary"
_PARTS: Final = {"trials": TRIALS, FORKS: TRIALS, SNAPSHOTS: TRIALS, "cache": CACHES, "lib": CACHES}
"""Folders of a study that only help to run it, and what they are."""

_TRIAL: Final = re.compile(r"at-(t\d+-a\d+-[0-9a-f]{6})")
_PROBE: Final = re.compile(r"\.autotune-probe-.+")
_APPLY: Final = re.compile(r"autotune-apply-.+")
_RAY: Final = re.compile(r"at-(ray|tune)-.+")
STARTING_S: Final = 60.0
"""A search under another home may have made a trial's folder and not started its process yet."""

UNTOUCHED_S: Final = 24 * 3600.0
"""Where a folder does not say whose it is, it is left behind when nobody has written to it for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One folder that can go.

    Args:
        kind: ``trials``, ``caches``, ``study`` (the whole of it) or ``temporary``.
        size_bytes: What it takes on the disk.
        study: Label of its study, the id where it has none; empty for a temporary folder.
        spared: Names in it that stay.
    """

    kind: str
    path: Path
    size_bytes: int
    study: str = ""
    spared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """What would be removed, and what is left alone with the reason."""

    leftovers: tuple[Leftover, ...]
    kept: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def size_bytes(self) -> int:
        """Of everything that would be removed."""
        return sum(leftover.size_bytes for leftover in self.leftovers)


def find(names: Sequence[str] = (), *, older_than_s: float | None = None) -> StoredItem:
    """What can go.

    Args:
        names: Studies that are to go whole, by label, id or the beginning of one.
        older_than_s: Studies to which nobody has written for so long are to go whole. With neither,
            every study keeps its journal, its best.yaml and the profiles that it was asked for, and loses
            the other folders of its trials and its caches; and what dead searches left in the temporary
            folder goes as well.

    Raises:
        StudyNotFound: No study, or more than one, is called so.
        UsageError: A name that means a folder elsewhere.
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
    """Remove it; a study's lock is held meanwhile.

    Returns:
        Path -> why it is still there, for what could not be removed.
    """
    left: dict[str, str] = {}
    # The records that it needs lie in what is removed.
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
    """The folder, if it is one of the home's; a study elsewhere is not ours to remove."""
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
        # In a shared home others keep theirs beside ours.
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
    """Folders of trials with a profile, which was made because somebody wants to look at it."""
    files = (PROFILE_TRACE, PROFILE_NSYS)
    return tuple(name for name in _names(trials) if any((trials / name / file).is_file() for file in files))


def _names(folder: Path) -> list[str]:
    """What lies in a folder; nothing where it cannot be read, or has gone."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _idle_s(path: Path) -> float:
    """Seconds since anything was written to a study's journal, to the study itself where it has none."""
    newest = _modified(path / JOURNAL_FILE) or _modified(path)
    ahead = path / f"{JOURNAL_FILE}-wal"
    # Whoever reads a journal makes an empty one.
    if ahead.is_file() and ahead.stat().st_size:
        newest = max(newest, _modified(ahead))
    return time.time() - newest


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Bytes on the disk, links themselves included and never followed."""
    total = 0
    for place, names, files in os.walk(folder):
        for name in (*names, *files):
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 (many files)
            except OSError:
                continue
    return total


# The temporary folder -----------------------------------------------------------------------


def _temporary(running: set[str]) -> Iterator[Leftover]:
    places = [Path(tempfile.gettempdir()), *(path / "trials" for path in _study_folders())]
    for place in places:
        if place.parent.name in running:
            continue
        for path in _folders_of_ours(place):
            if _is_dead(path, running):
                yield Leftover(kind=TEMPORARY, path=path, size_bytes=_size(path))


def _folders_of_ours(place: Path) -> Iterator[Path]:
    """Folders by our names that belong to this user; in a shared folder others may use the same names."""
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
    """Whether nothing that lives needs this folder."""
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
    """Pid of the `autotune apply` that made this folder, 0 where it does not say."""
    try:
        nonce = json.loads((path / "plan.json").read_bytes()).get("nonce", "")
    except (OSError, ValueError, AttributeError):
        return 0
    number = str(nonce).removeprefix("apply-")
    return int(number) if number.isdecimal() else 0


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not process_tree.is_zombie(pid)


def _untouched_s(path: Path) -> float:
    """Seconds since anything in the upper two levels of a folder was written."""
    newest = _modified(path)
    try:
        for child in (*path.iterdir(), *path.glob("*/*")):
            newest = max(newest, _modified(child))
    except OSError:
        # Somebody works on it at this moment, or it may not be looked into: not ours to judge.
        return 0.0
    return time.time() - newest


def _named_by_a_process(path: Path) -> bool:
    """Ray names the folder of its session on command lines, and that of its token in a variable."""
    name = os.fsencode(path.name)
    for pid in process_tree.all_pids():
        for told in ("cmdline", "environ"):
            try:
                if name in Path(f"/proc/{pid}/{told}").read_bytes():
                    return True
            except OSError:
                continue
    return False
