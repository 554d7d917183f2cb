"""Compile caches of a trial: seeded from what an earlier trial of the same config left, published whole.

A trial works on a copy of its own, so that a killed one can leave neither a torn file nor a stale lock
to a later one. A cache is published by one rename, and only after a clean end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.launch.guard import process_tree
from autotune.launch.workspace import isolation

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}
BUILD_S = 900.0
"""A build that began so long ago, and has no process here, is taken for dead."""

_GROUP = "__grp__"
_LENT = ".lent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCaches:
    """The caches of one trial.

    Args:
        folder: The trial's own copy.
        published: Where the caches of this config are published; None where it has no key.
        cold: Nothing had been published when the trial began.
    """

    folder: Path
    published: Path | None
    cold: bool

    @property
    def env(self) -> dict[str, str]:
        """The variables that point a process at the trial's copy."""
        return {variable: str(self.folder / name) for variable, name in VARIABLES.items()}

    def publish(self) -> bool:
        """Offer what this trial compiled to later ones; the first of several wins.

        Returns:
            Whether it was published by this call.
        """
        if self.published is None or not self.cold or not _has_files(self.folder):
            return False
        try:
            # A full disk or a quota costs the cache, and not the measurement that was made.
            self.published.parent.mkdir(parents=True, exist_ok=True)
            # Onto a folder that is not empty this fails, and that is the whole locking there is.
            self.folder.rename(self.published)
        except OSError:
            return False
        return True


def prepare(study_dir: Path, trial_dir: Path, cache_key: str) -> CompileCaches:
    """Make a trial's caches, from a copy of the published ones where there are any."""
    folder = trial_dir / "cache"
    published = study_dir / "cache" / cache_key if cache_key else None
    cold = True
    if published is not None and published.is_dir():
        try:
            shutil.copytree(published, folder, ignore=_locks, symlinks=True)
            _relocate(folder, folder)
            cold = False
        except OSError:
            isolation.remove(folder)
    for name in VARIABLES.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return CompileCaches(folder=folder, published=published, cold=cold)


def lent(published: Path) -> dict[str, str]:
    """Variables that point a run of the user's own at a copy of published caches, made once and kept.

    What such a run compiles besides goes into the copy, for later ones: what trials have published stays
    as it is, also where the run is killed. Empty where no copy can be made.
    """
    copy = published.with_name(f"{published.name}{_LENT}")
    if not copy.is_dir():
        with contextlib.suppress(OSError):
            _copied(published, copy)
    else:
        _unlock(copy / VARIABLES["TORCH_EXTENSIONS_DIR"])
    return {variable: str(copy / name) for variable, name in VARIABLES.items() if (copy / name).is_dir()}


def _unlock(extensions: Path) -> None:
    """Remove the locks of builds whose process has gone.

    PyTorch (`torch.utils.file_baton`) waits for such a file to disappear, for ever where its owner was
    killed. The owner keeps it open while it builds; one that builds on another host is not seen, so a lock
    has to be old as well.
    """
    stale = [path for path in extensions.glob("*/lock") if time.time() - _modified(path) > BUILD_S]
    held = _open_files() if stale else frozenset[str]()
    for lock in stale:
        if os.path.realpath(lock) not in held:
            with contextlib.suppress(OSError):
                lock.unlink()


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return math.inf


def _open_files() -> frozenset[str]:
    """Paths of what this user's processes have open."""
    found: list[str] = []
    for pid in process_tree.all_pids():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return frozenset(found)


def _copied(published: Path, to: Path) -> None:
    """Make the copy by one rename; of several runs at once the first wins."""
    part = Path(tempfile.mkdtemp(prefix=f"{to.name}-", dir=to.parent))
    try:
        made = part / "made"
        shutil.copytree(published, made, ignore=_locks, symlinks=True)
        _relocate(made, to)
        made.rename(to)
    finally:
        isolation.remove(part)


def _relocate(caches: Path, to: Path) -> None:
    """Let Triton find a kernel's files of these caches where they are, or soon will be.

    It notes them by full path (``__grp__*.json`` beside them) and takes a kernel whose files are gone for
    one never compiled; Inductor restores no kernel into a folder that has files (torch 2.13,
    `_inductor/triton_bundler.py`). Without this a copied cache would be cold for every kernel.
    """
    triton = VARIABLES["TRITON_CACHE_DIR"]
    for group in (caches / triton).glob(f"*/{_GROUP}*.json"):
        kernel = to / triton / group.parent.name
        try:
            told = json.loads(group.read_bytes())
            files = {name: str(kernel / os.path.basename(path)) for name, path in told["child_paths"].items()}
            group.write_text(json.dumps({**told, "child_paths": files}), encoding="utf-8")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # Unreadable, it makes one kernel cold.
            group.unlink(missing_ok=True)


def _locks(_folder: str, names: list[str]) -> list[str]:
    return [
        n for n in names if n in ("lock", "locks") or n.endswith((".lock", ".tmp")) or n.startswith("tmp.")
    ]


def _has_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))
