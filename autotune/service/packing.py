"""Packing of a search's code: files that git would keep, without secrets, within a size limit."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_BYTES: Final = 100 * 1024 * 1024
MOST_FILES: Final = 20_000
SECRET_NAMES: Final = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*", "id_ecdsa*", ".netrc",
    ".pypirc", ".npmrc", "credentials", "credentials.json", "service_account*.json", "*.kdbx", ".htpasswd",
)  # fmt: skip
"""Names of files that usually hold a secret; `--include` sends one explicitly."""
SKIPPED: Final = (
    ".git",
    "__pycache__",
    ".venv",
    "venv",
    "node_modules",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
)
"""Folders that are skipped without git."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Files to send to the service.

    Args:
        root: Root folder.
        files: Paths below it, sorted.
        bytes: Sum of their sizes.
        commit: Commit of git; empty outside of a repository.
        is_dirty: Whether files differ from the commit.
        refused: Files with names of secrets, which are not sent.
    """

    root: Path
    files: tuple[str, ...]
    bytes: int
    commit: str = ""
    is_dirty: bool = False
    refused: tuple[str, ...] = ()


def packing_list(root: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Packed:
    """Return the files of a folder to send.

    In a git repository: tracked files, and untracked ones that .gitignore does not name. Links, sockets and
    other special files are left out.

    Args:
        root: Root folder.
        include: Patterns of files to send even if git ignores them or their names indicate secrets.
        exclude: Patterns of files to leave out.

    Raises:
        UsageError: There are too many files, or they are too large.
    """
    names, commit, is_dirty = _git(root)
    if names is None:
        names = _walked(root)
    wanted = {name for name in _walked(root) if _matches(name, include)} if include else set[str]()
    names = sorted({*names, *wanted})
    files, refused, total = list[str](), list[str](), 0
    for name in names:
        path = root / name
        if _matches(name, exclude) or path.is_symlink() or not path.is_file():
            continue
        if _matches(name, SECRET_NAMES) and not _matches(name, include):
            refused.append(name)
            continue
        files.append(name)
        total += path.stat().st_size
        if len(files) > MOST_FILES or total > MOST_BYTES:
            largest = sorted(files, key=lambda one: -(root / one).stat().st_size)[:3]
            raise UsageError(
                f"{root} is too large to send: more than {MOST_BYTES // 2**20} MiB or {MOST_FILES} files",
                hint=f"name data in .gitignore or leave it out: --exclude; the largest: {', '.join(largest)}",
            )
    return Packed(
        root=root,
        files=tuple(files),
        bytes=total,
        commit=commit,
        is_dirty=is_dirty,
        refused=tuple(refused),
    )


def pack(packed: Packed) -> tuple[bytes, str]:
    """Return the archive (tar, gzip) and its SHA-256; equal files give equal bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in packed.files:
            data = (packed.root / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if os.access(packed.root / name, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    data = gzip.compress(raw.getvalue(), mtime=0)
    return data, hashlib.sha256(data).hexdigest()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    last = name.rpartition("/")[2]
    return any(fnmatch.fnmatch(last, one) or fnmatch.fnmatch(name, one) for one in patterns)


def _git(root: Path) -> tuple[list[str] | None, str, bool]:
    """Return the files that git would keep (None outside a repository), the commit, and if files differ."""
    listed = _git_output(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None, "", False
    commit = _git_output(root, "rev-parse", "HEAD") or b""
    dirty = _git_output(root, "status", "--porcelain", "--", ".") or b""
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return names, commit.decode().strip(), bool(dirty.strip())


def _git_output(root: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _walked(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if one not in SKIPPED]
        below = os.path.relpath(folder, root)
        found += [name if below == "." else f"{below}/{name}" for name in names]
        if len(found) > 10 * MOST_FILES:
            break
    return found
