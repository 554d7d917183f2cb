"""Isolation of a trial's writes from the user's files, chosen by trying it on this machine."""

from __future__ import annotations

import contextlib
import functools
import grp
import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.launch.guard import namespace, overlay_probe
from autotune.protocol.lines import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PROBE_S = 15.0
KILLED_S = 1.0
PROBE_FOLDER = ".autotune-probe-"
"""Prefix of the names of probe folders."""

ABANDONED_S = 3600.0
"""A probe lasts 16 s at most, so the process of such an old folder was killed."""

MANIFEST_FILES = 20_000

_PASSING = ("/tmp", "/var/tmp", "/dev", "/proc", "/run", "/sys")  # noqa: S108 (compared only)
"""Folders of temporary files, whose loss does no harm."""

Manifest = dict[str, tuple[int, int, int, int]]
"""Path -> (size, mtime in ns, inode, mode); for a folder only inode and mode."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation mode of a trial's writes.

    Args:
        mode: ``overlay`` if the kernel allows an overlay of the file tree, else ``redirect``.
        why: Part of the user's tree that rules out an overlay; empty if none does.
        moves_folders: Existing folders can be renamed under the overlay.
    """

    mode: str
    why: str = ""
    moves_folders: bool = False

    @property
    def note(self) -> str:
        """Message for the user before trials run; may be empty."""
        return f"trials run in redirect mode: {self.why}" if self.why else ""


def available(base: str = "", must: tuple[str, ...] = (), trees: tuple[str, ...] = ()) -> str:
    """Return the mode of `examined`."""
    return examined(base, must, trees).mode


def found_for(script: str, cwd: str, env: Mapping[str, str], base: str = "") -> Isolation:
    """Return the result of `examined` for a script's own folders.

    Args:
        script: Path of the script.
        cwd: Its working directory.
        env: Its environment.
        base: As for `examined`.
    """
    trees = dict.fromkeys(os.path.realpath(place) for place in (project_root(script), cwd))
    return examined(base, protected(script, cwd, env), tuple(tree for tree in trees if os.path.isdir(tree)))


@functools.cache
def examined(base: str = "", must: tuple[str, ...] = (), trees: tuple[str, ...] = ()) -> Isolation:
    """Try isolation once, in a separate process that takes at most `PROBE_S` seconds.

    Args:
        base: Folder of the trials' layers, whose file system matters; empty: the system's temporary folder.
        must: Folders that an overlay has to protect, from `protected`; nothing is written to them. Network
            and user file systems may not support it.
        trees: Folders whose files a trial must be able to write to as without an overlay.
    """
    try:
        place = Path(base or tempfile.gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place)
        folder = tempfile.mkdtemp(prefix=PROBE_FOLDER, dir=place)
    except OSError:
        return Isolation("redirect")
    try:
        found = _probed(folder, {"must": must, "trees": trees})
    finally:
        remove(folder)
    if not found.get("protects"):
        return Isolation("redirect")
    if unwritable := found["unwritable"]:
        return Isolation("redirect", why=_why_unwritable(unwritable))
    return Isolation("overlay", moves_folders=bool(found["moves"]))


def _remove_abandoned(place: Path) -> None:
    """Remove probe folders of this account whose process was killed."""
    with os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(PROBE_FOLDER):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > ABANDONED_S:
                    remove(entry.path)


def _why_unwritable(sample: Mapping[str, Any]) -> str:
    owner = f"{_name(pwd.getpwuid, sample['uid'])}:{_name(grp.getgrgid, sample['gid'])}"
    return (
        f"an overlay that you mount cannot write to {sample['path']} ({owner}). "
        "Programs that are not Python can change your files"
    )


def _name(find: Callable[[int], tuple[Any, ...]], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def _probed(folder: str, request: Mapping[str, object]) -> dict[str, Any]:
    """Return the report of `overlay_probe`; empty if it failed or hung."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", overlay_probe.__file__, folder, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return {}
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
        return json.loads(process.communicate(timeout=PROBE_S)[0])
    process.kill()
    # A process that hangs inside the kernel (a lost file server) does not end, so it is not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILLED_S)
    return {}


def remove(folder: str | Path) -> None:
    """Delete a folder of autotune, including the kernel's protected work folders; never raises.

    If a trial has put a link in its place, only the link is removed.
    """
    namespace.remove(os.fspath(folder))


def project_root(script: str) -> str:
    """Return the git work tree of the script, else the script's folder."""
    folder = Path(script).resolve().parent
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return str(place)
    return str(folder)


def protected(script: str, cwd: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's folders that a trial must not change: project, working directory, home."""
    roots = [project_root(script), os.path.realpath(cwd)]
    home = env.get("HOME", "")
    if home and home != "/":
        roots.append(os.path.realpath(home))
    found: list[str] = []
    for folder in sorted({w for w in roots if os.path.isdir(w)}, key=len):
        if not any(folder == f or folder.startswith(f.rstrip("/") + "/") for f in found):
            found.append(folder)
    return tuple(found)


def manifest(folders: Iterable[str], *, skip: Iterable[str] = ()) -> Manifest:
    """Return size, modification time, inode and mode of files in these folders, at most `MANIFEST_FILES`.

    Version control, environments and `skip` are left out.
    """
    found: Manifest = {}
    skipped = tuple(os.path.realpath(s) for s in skip)
    for folder in folders:
        for place, names, files in os.walk(folder):
            names[:] = sorted(
                n
                for n in names
                if n not in overlay_probe.SKIPPED
                and not n.startswith(".")
                and os.path.join(place, n) not in skipped
            )
            for name in names:
                path = os.path.join(place, name)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    found[path] = (0, 0, status.st_ino, status.st_mode)
            for name in sorted(files):
                path = os.path.join(place, name)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    found[path] = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
                if len(found) >= MANIFEST_FILES:
                    return found
    return found


def kept_off(trial_dir: Path, folders: Sequence[str], ours: str = "") -> list[str]:
    """Return the paths in these folders that a trial has written or deleted in its overlay, sorted.

    The same places are searched as by `manifest`, at most `MANIFEST_FILES`. Empty if the layers were in
    memory.

    Args:
        trial_dir: Folder of the trial, with its layers.
        folders: Real paths.
        ours: A folder of autotune, which may lie in the project. A compiled kernel stores tuning results in
            the folder of an earlier trial; these are no writes of the script.
    """
    own = os.path.realpath(ours) if ours else ""
    found: list[str] = []
    for place, names, files in _written(trial_dir):
        if own and _inside(place, own):
            names[:] = []
            continue
        if any(_inside(place, folder) for folder in folders):
            names[:] = [n for n in names if n not in overlay_probe.SKIPPED and not n.startswith(".")]
            found += [os.path.join(place, name) for name in files]
    return sorted(found)


def kept_off_elsewhere(trial_dir: Path, folders: Sequence[str], passing: Sequence[str] = ()) -> list[str]:
    """Return the same for other folders, as a script may write to a home or to ``/srv``.

    Temporary folders outside the project and names that start with a dot, where libraries keep caches, are
    skipped.

    Args:
        trial_dir: Folder of the trial, with its layers.
        folders: Real paths, which `kept_off` reports.
        passing: Further folders to skip.
    """
    real = (os.path.realpath(folder) for folder in (*_PASSING, *passing) if folder)
    passed = tuple(place for place in real if not any(_inside(folder, place) for folder in folders))
    found: list[str] = []
    for place, names, files in _written(trial_dir):
        if any(_inside(place, folder) for folder in (*folders, *passed)):
            names[:] = []
            continue
        names[:] = [n for n in names if n not in overlay_probe.SKIPPED and not n.startswith(".")]
        paths = (os.path.join(place, name) for name in files if not name.startswith("."))
        found += [path for path in paths if not any(_inside(path, folder) for folder in passed)]
    return sorted(found)


def _written(trial_dir: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the folders of a trial's layers at their original paths, like `os.walk`, up to a limit."""
    looked = 0
    for note in sorted((trial_dir / "upper").glob(f"*{namespace.NOTE}")):
        with contextlib.suppress(OSError):
            with open_plain(note) as file:
                lower = file.read().decode("utf-8", errors="surrogateescape")
            layer = str(note)[: -len(namespace.NOTE)]
            for place, names, files in os.walk(layer):
                yield os.path.normpath(os.path.join(lower, os.path.relpath(place, layer))), names, files
                looked += len(files) + len(names)
                if looked > MANIFEST_FILES:
                    return


def _inside(path: str, folder: str) -> bool:
    return f"{path}/".startswith(folder.rstrip("/") + "/")


def violations(before: Manifest, after: Manifest) -> list[str]:
    """Return the paths that were changed, removed or (if both manifests are complete) added, sorted."""
    changed = {path for path, status in before.items() if after.get(path) != status}
    if len(before) < MANIFEST_FILES and len(after) < MANIFEST_FILES:
        changed |= after.keys() - before.keys()
    elif len(after) >= MANIFEST_FILES:
        changed = {path for path in changed if path in after}
    return sorted(changed)
