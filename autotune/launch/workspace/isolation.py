"""How a trial's writes are kept off the user's files on this machine: found out by trying."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.launch.guard import namespace, overlay_probe
from autotune.protocol.lines import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PROBE_S = 15.0
KILLED_S = 1.0
MANIFEST_FILES = 20_000

_PASSING = ("/tmp", "/var/tmp", "/dev", "/proc", "/run", "/sys")  # noqa: S108 (told from others, not used)
"""What is written there is nobody's to miss."""

Manifest = dict[str, tuple[int, int, int, int]]
"""Path -> (size, mtime in ns, inode, mode); of a folder inode and mode alone, the rest is its entries'."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a trial's writes can be kept off the user's files.

    Args:
        mode: ``overlay`` where the kernel lets us overlay the file tree, ``redirect`` where not.
        why: What of the user's tree rules out an overlay; empty where nothing does.
        moves_folders: Folders that were there before can be renamed under the overlay.
    """

    mode: str
    why: str = ""
    moves_folders: bool = False

    @property
    def note(self) -> str:
        """What a person should know before trials run; empty for nothing."""
        return f"trials run in redirect mode: {self.why}" if self.why else ""


def available(base: str = "", must: tuple[str, ...] = (), trees: tuple[str, ...] = ()) -> str:
    """The mode of `examined`."""
    return examined(base, must, trees).mode


def found_for(script: str, cwd: str, env: Mapping[str, str], base: str = "") -> Isolation:
    """What `examined` finds for a script's own folders.

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
    """Try once what isolation is possible, in a process of its own, at most `PROBE_S` seconds.

    Args:
        base: The folder in which trials will keep their layers (what works depends on its file
            system); the system's temporary folder where empty.
        must: Folders that an overlay has to protect, from `protected`; nothing is written to them. A
            network's or a user's own file system may not allow it.
        trees: Folders whose files and folders a trial has to be able to write to as without an overlay.
    """
    try:
        Path(base or tempfile.gettempdir()).mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".autotune-probe-", dir=base or None)
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
    """What `overlay_probe` reports; empty if it has failed or hangs."""
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
    # What hangs inside the kernel (a file server that has gone) is not ended by that, nor waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILLED_S)
    return {}


def remove(folder: str | Path) -> None:
    """Delete a folder of ours, the kernel's closed work folders in it included; never raises.

    Where a trial has put a link in its place, the link goes and nothing else.
    """
    namespace.remove(os.fspath(folder))


def project_root(script: str) -> str:
    """The git work tree that holds the script, else the script's own folder."""
    folder = Path(script).resolve().parent
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return str(place)
    return str(folder)


def protected(script: str, cwd: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of the user's that a trial must not change: project, working directory, home."""
    wanted = [project_root(script), os.path.realpath(cwd)]
    home = env.get("HOME", "")
    if home and home != "/":
        wanted.append(os.path.realpath(home))
    found: list[str] = []
    for folder in sorted({w for w in wanted if os.path.isdir(w)}, key=len):
        if not any(folder == f or folder.startswith(f.rstrip("/") + "/") for f in found):
            found.append(folder)
    return tuple(found)


def manifest(folders: Iterable[str], *, skip: Iterable[str] = ()) -> Manifest:
    """Size, modification time, inode and mode of what is in these folders, at most `MANIFEST_FILES`.

    Version control and environments are left out, and so is everything in `skip`.
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
    """What a trial has written or deleted in these folders, as it saw them: its overlay holds that; sorted.

    Looked for in the same places as by `manifest`, among at most `MANIFEST_FILES`; nothing where the layers
    were in memory.

    Args:
        trial_dir: Its layers are still there.
        folders: Real paths.
        ours: A folder of ours, which may lie in the project: a compiled kernel keeps what it has tuned
            where it was compiled first, in the folder of an earlier trial. That is no doing of the script.
    """
    own = os.path.realpath(ours) if ours else ""
    found: list[str] = []
    for seen, names, files in _written(trial_dir):
        if own and _inside(seen, own):
            names[:] = []
            continue
        if any(_inside(seen, folder) for folder in folders):
            names[:] = [n for n in names if n not in overlay_probe.SKIPPED and not n.startswith(".")]
            found += [os.path.join(seen, name) for name in files]
    return sorted(found)


def kept_off_elsewhere(trial_dir: Path, folders: Sequence[str], passing: Sequence[str] = ()) -> list[str]:
    """The same of everywhere else: a script that writes to a home or to ``/srv`` reaches nobody's files.

    Folders for what does not last are passed over where the project is not in them, and so are names with a
    dot before them: libraries keep their caches there.

    Args:
        trial_dir: Its layers are still there.
        folders: Real paths; what is told by `kept_off`.
        passing: Further folders that are passed over.
    """
    real = (os.path.realpath(folder) for folder in (*_PASSING, *passing) if folder)
    passed = tuple(place for place in real if not any(_inside(folder, place) for folder in folders))
    found: list[str] = []
    for seen, names, files in _written(trial_dir):
        if any(_inside(seen, folder) for folder in (*folders, *passed)):
            names[:] = []
            continue
        names[:] = [n for n in names if n not in overlay_probe.SKIPPED and not n.startswith(".")]
        paths = (os.path.join(seen, name) for name in files if not name.startswith("."))
        found += [path for path in paths if not any(_inside(path, folder) for folder in passed)]
    return sorted(found)


def _written(trial_dir: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Folders of a trial's layers as it saw them, as by `os.walk`, until many have been looked at."""
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
    """What was changed, removed or, where both lists are complete, added; sorted."""
    changed = {path for path, status in before.items() if after.get(path) != status}
    if len(before) < MANIFEST_FILES and len(after) < MANIFEST_FILES:
        changed |= after.keys() - before.keys()
    elif len(after) >= MANIFEST_FILES:
        changed = {path for path in changed if path in after}
    return sorted(changed)
