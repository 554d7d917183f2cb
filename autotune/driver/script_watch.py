"""Whether the script, and what it imports of the user's own, is still what a search began with."""

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
    """What the first run of a script has imported of the user's own.

    Args:
        files: Path -> SHA-256 as it was imported.
        since_s: When the study began, seconds since the epoch.
    """

    files: Mapping[str, str]
    since_s: float


def modules_of(study: Study) -> Imported | None:
    """The imported files of a study; None before a run has told them."""
    if study.facts is None or study.facts.run is None:
        return None
    return Imported(files=study.facts.run.modules, since_s=study.created)


def changed_module(found: Imported | None) -> str:
    """The first of these files that was edited since the study began, empty where none was.

    What a trial has written itself, and imported, never was in the user's folder, or lies there as it was
    before: neither is an edit.
    """
    if found is None:
        return ""
    for name, sha256 in found.files.items():
        path = restore(name)
        try:
            stat = os.stat(path)  # noqa: PTH116 (many files)
            if stat.st_mtime >= found.since_s and _sha256(path) != sha256:
                return path
        except OSError:
            continue
    return ""


class ScriptWatch:
    """Looks at the script before and after every trial: two versions of it cannot be compared.

    One `stat` a file and time; the content is read only where that differs from the last time.

    Args:
        path: The file whose source was inspected.
        sha256: Of its content then, in hexadecimal; empty where it is not known: nothing is noticed.
    """

    def __init__(self, path: str, sha256: str) -> None:
        self._path = Path(path)
        self._sha256 = sha256
        self._seen: _Mark | None = None
        self._imported: Callable[[], Imported | None] = lambda: None
        self._modules: dict[str, tuple[str, _Mark]] | None = None
        self._edited = ""

    def follow(self, imported: Callable[[], Imported | None]) -> None:
        """Look at the files that the script imports as well, as soon as they are known."""
        self._imported = imported

    def __call__(self) -> str:
        """A sentence where it is another one now, else an empty string."""
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
                return f"{self._shown(self._edited)} was changed during the search"
            self._modules = dict(_followed(found))
        for path, (sha256, mark) in self._modules.items():
            try:
                now = _mark(path)
                if now == mark:
                    continue
                if _sha256(path) != sha256:
                    return f"{self._shown(path)} was changed during the search"
            except OSError as error:
                return f"{self._shown(path)} can no longer be read: {error.strerror}"
            self._modules[path] = (sha256, now)
        return ""

    def _shown(self, path: str) -> str:
        """As seen from the script's folder, where it lies below."""
        relative = os.path.relpath(path, self._path.parent)
        return path if relative.startswith("..") else relative


def _followed(found: Imported) -> list[tuple[str, tuple[str, _Mark]]]:
    """The files that lie in the user's folders as they were imported, with how they look now."""
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
    stat = os.stat(path)  # noqa: PTH116 (many files, again and again)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
