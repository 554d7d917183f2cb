"""The user's files that a script has imported, with their digests."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_FILES = 500
MOST_BYTES = 4 * 1024 * 1024
"""Largest total size; reading them must cost next to nothing."""

_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_GENERATED = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "HF_HOME")


class Modules:
    """Reads each file once, like Python.

    Args:
        script: Its path. The user's files are those below its project (the git work tree, else its folder)
            and below the working directory, without those of Python, packages and compilers.
        cwd: The user's working directory.
        ours: Folders of autotune.
        environ: Names the folders of temporary and generated files.
    """

    def __init__(self, script: str, cwd: str, *, ours: Iterable[str], environ: Mapping[str, str]) -> None:
        self._script = os.path.realpath(script)
        projects = {_project(os.path.dirname(path)) for path in (self._script, os.path.abspath(script))}
        roots = {_folder(path) for path in (*projects, cwd, os.path.realpath(cwd))} - {os.sep}
        self._roots = tuple(roots)
        generated = [environ[name] for name in _GENERATED if environ.get(name)]
        apart = {
            _folder(path)
            for path in (*_installed(), *filter(None, ours), *generated, str(Path(__file__).parents[2]))
        }
        prefixes = {_folder(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)}
        # A project may lie below the folder that Python is installed in (/usr, /opt).
        apart |= {prefix for prefix in prefixes if not any(root.startswith(prefix) for root in roots)}
        self._apart = tuple(apart)
        self._known: dict[str, str] = {}
        self._bytes = 0

    def seen(self) -> dict[str, str]:
        """Return path -> SHA-256 in order of import, up to a limit."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self._known and self._is_own(file):
                self._known[file] = self._hash(file) if len(self._known) < MOST_FILES else ""
        return {path: sha256 for path, sha256 in self._known.items() if sha256}

    def _is_own(self, file: str) -> bool:
        if not file.startswith(self._roots) or file.startswith(self._apart):
            return False
        return not any(part in file for part in _PACKAGES) and os.path.realpath(file) != self._script

    def _hash(self, file: str) -> str:
        try:
            if self._bytes + os.stat(file).st_size > MOST_BYTES:
                return ""
            content = Path(file).read_bytes()
        except OSError:
            return ""
        self._bytes += len(content)
        return hashlib.sha256(content).hexdigest()


def _folder(path: str) -> str:
    return path.rstrip(os.sep) + os.sep


def _installed() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths[name] for name in _LIBRARIES if paths.get(name)]


def _project(folder: str) -> str:
    place = folder
    while not os.path.exists(os.path.join(place, ".git")):
        above = os.path.dirname(place)
        if above == place:
            return folder
        place = above
    return place
