"""Detection of edits to the script and its imported modules during a search."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.text.redact import restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.model.study import Study

_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The user's modules imported in the first run of a script.

    Args:
        files: Path -> SHA-256 at the import.
        since_s: Start of the study, seconds since the epoch.
    """

    files: Mapping[str, str]
    since_s: float


def modules_of(study: Study) -> Imported | None:
    """Return the imported files of a study; None before a run has reported them."""
    if study.facts is None or study.facts.run is None:
        return None
    return Imported(files=study.facts.run.modules, since_s=study.created)


def changed_module(found: Imported | None) -> str:
    """Return the first of these files edited since the study began; empty if there is none.

    Files that a trial has written and imported itself were never in the user's folder, or are unchanged
    there, so they are no edits.
    """
    if found is None:
        return ""
    for name, sha256 in found.files.items():
        path = restore(name)
        try:
            stat = os.stat(path)  # noqa: PTH116 (faster than `Path` for many files)
            if stat.st_mtime >= found.since_s and _sha256(path) != sha256:
                return path
        except OSError:
            continue
    return ""


class ScriptWatch:
    """Checks the script before and after every trial, as two versions of it cannot be compared.

    Costs one `stat` per file and check; contents are read only if that differs from the last check.

    Args:
        path: The file whose source was inspected.
        sha256: Its digest at that time, in hexadecimal; empty if unknown: edits are not detected.
    """

    def __init__(self, path: str, sha256: str) -> None:
        self._path = Path(path)
        self._sha256 = sha256
        self._seen: _Mark | None = None
        self._imported: Callable[[], Imported | None] = lambda: None
        self._modules: dict[str, tuple[str, _Mark]] | None = None
        self._edited = ""

    def follow(self, imported: Callable[[], Imported | None]) -> None:
        """Check the files that the script imports as well, once they are known."""
        self._imported = imported

    def __call__(self) -> str:
        """Return a sentence if the script has changed, else an empty string."""
        return self._script() or self._module()

    def _script(self) -> str:
        if not self._sha256:
            return ""
        try:
            mark = _mark(self._path)
            if mark == self._seen:
                return ""
            if _sha256(self._path) != self._sha256:
                return f"{self._path.name} was changed during the search"
        except OSError as error:
            return f"{self._path.name} can no longer be read: {error.strerror}"
        self._seen = mark
        return ""

    def _module(self) -> str:
        if self._modules is None:
            found = self._imported()
            if found is None:
                return ""
            self._edited = self._edited or changed_module(found)
            if self._edited:
                return f"{self._relative(self._edited)} was changed during the search"
            self._modules = dict(_followed(found))
        for path, (sha256, mark) in self._modules.items():
            try:
                now = _mark(path)
                if now == mark:
                    continue
                if _sha256(path) != sha256:
                    return f"{self._relative(path)} was changed during the search"
            except OSError as error:
                return f"{self._relative(path)} can no longer be read: {error.strerror}"
            self._modules[path] = (sha256, now)
        return ""

    def _relative(self, path: str) -> str:
        """Return the path relative to the script's folder, if it is inside."""
        relative = os.path.relpath(path, self._path.parent)
        return path if relative.startswith("..") else relative


def _followed(found: Imported) -> list[tuple[str, tuple[str, _Mark]]]:
    """Return the files that are in the user's folders as imported, with their present state."""
    rows: list[tuple[str, tuple[str, _Mark]]] = []
    for name, sha256 in found.files.items():
        path = restore(name)
        try:
            mark = _mark(path)
            if _sha256(path) == sha256:
                rows.append((path, (sha256, mark)))
        except OSError:
            continue
    return rows


def _mark(path: str | Path) -> _Mark:
    stat = os.stat(path)  # noqa: PTH116 (faster than `Path` for many files)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
