"""Whether the script is still the one that a search began with."""

from __future__ import annotations

import hashlib
from pathlib import Path


class ScriptWatch:
    """Looks at the script before and after every trial: two versions of it cannot be compared.

    One `stat` a time; the content is read only where that differs from the last time.

    Args:
        path: The file whose source was inspected.
        sha256: Of its content then, in hexadecimal; empty where it is not known: nothing is noticed.
    """

    def __init__(self, path: str, sha256: str) -> None:
        self._path = Path(path)
        self._sha256 = sha256
        self._seen: tuple[int, int, int] | None = None

    def __call__(self) -> str:
        """A sentence where it is another one now, else an empty string."""
        if not self._sha256:
            return ""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark == self._seen:
                return ""
            if hashlib.sha256(self._path.read_bytes()).hexdigest() != self._sha256:
                return f"{self._path.name} was changed while it was searched"
        except OSError as error:
            return f"{self._path.name} cannot be read any more: {error.strerror}"
        self._seen = mark
        return ""
