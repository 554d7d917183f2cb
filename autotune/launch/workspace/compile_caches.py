"""Compile caches of a trial: copied from an earlier trial of the same config, and published as a whole.

A trial works on its own copy, so a killed trial leaves no partial file or stale lock to later ones. A cache
is published by one rename, after a clean end only.
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
"""Age from which a build without a local process counts as dead."""

_GROUP = "__grp__"
_LENT = ".lent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCaches:
    """The caches of one trial.

    Args:
        folder: The trial's own copy.
        published: Location of this config's published caches; None without a cache key.
        cold: No caches had been published when the trial began.
    """

    folder: Path
    published: Path | None
    cold: bool

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that direct a process to the trial's copy."""
        return {variable: str(self.folder / name) for variable, name in VARIABLES.items()}

    def publish(self) -> bool:
        """Publish this trial's compiled files for later trials, unless another trial has.

        Returns:
            Whether this call published them.
        """
        if self.published is None or not self.cold or not _has_files(self.folder):
            return False
        try:
            # A full disk or a quota costs the cache, not the measurement.
            self.published.parent.mkdir(parents=True, exist_ok=True)
            # The rename fails if the folder is not empty, so it needs no further lock.
            self.folder.rename(self.published)
        except OSError:
            return False
        return True


def prepare(study_dir: Path, trial_dir: Path, cache_key: str) -> CompileCaches:
    """Create a trial's caches, from a copy of published ones if available."""
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
    """Return variables that direct a user's run to a copy of published caches, made once and retained.

    New compilations of such a run go into the copy, for later runs; published files do not change, even if
    the run is killed. Empty if no copy can be made.
    """
    copy = published.with_name(f"{published.name}{_LENT}")
    if not copy.is_dir():
        with contextlib.suppress(OSError):
            _copied(published, copy)
    else:
        _unlock(copy / VARIABLES["TORCH_EXTENSIONS_DIR"])
    return {variable: str(copy / name) for variable, name in VARIABLES.items() if (copy / name).is_dir()}


def _unlock(extensions: Path) -> None:
    """Remove the locks of builds whose process has ended.

    PyTorch (`torch.utils.file_baton`) waits for such a file to disappear, indefinitely if its owner was
    killed. The owner keeps it open while it builds. Builds on other hosts are invisible, so a lock must also
    be old.
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
    """Return the paths that this user's processes have open."""
    found: list[str] = []
    for pid in process_tree.all_pids():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return frozenset(found)


def _copied(published: Path, to: Path) -> None:
    """Make the copy by one rename; the first of several runs succeeds."""
    part = Path(tempfile.mkdtemp(prefix=f"{to.name}-", dir=to.parent))
    try:
        made = part / "made"
        shutil.copytree(published, made, ignore=_locks, symlinks=True)
        _relocate(made, to)
        made.rename(to)
    finally:
        isolation.remove(part)


def _relocate(caches: Path, to: Path) -> None:
    """Rewrite the paths in Triton's index files to the caches' new location.

    Triton stores full paths (``__grp__*.json`` beside the files) and treats a kernel with missing files as
    uncompiled; Inductor restores no kernel into a folder that has files (torch 2.13,
    `_inductor/triton_bundler.py`). Without this a copied cache would be cold for every kernel.
    """
    triton = VARIABLES["TRITON_CACHE_DIR"]
    for group in (caches / triton).glob(f"*/{_GROUP}*.json"):
        kernel = to / triton / group.parent.name
        try:
            index = json.loads(group.read_bytes())
            files = {
                name: str(kernel / os.path.basename(path)) for name, path in index["child_paths"].items()
            }
            group.write_text(json.dumps({**index, "child_paths": files}), encoding="utf-8")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # An unreadable index makes one kernel cold.
            group.unlink(missing_ok=True)


def _locks(_folder: str, names: list[str]) -> list[str]:
    return [
        n for n in names if n in ("lock", "locks") or n.endswith((".lock", ".tmp")) or n.startswith("tmp.")
    ]


def _has_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))
