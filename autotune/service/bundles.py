"""Code bundles on the service: stored by digest, unpacked for each search, untrusted."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tarfile
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.service.archives import extract, is_plain
from autotune.service.packing import MOST_BYTES, MOST_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
MOST_UNPACKED: Final = 4 * MOST_BYTES
"""Bytes that a bundle may unpack to; a far better compression indicates an attack."""


class Bundles:
    """Bundles below a folder.

    Args:
        folder: Folder on storage that jobs share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def has(self, sha256: str) -> bool:
        """Return whether a bundle was completely uploaded."""
        return self._path(sha256).is_file()

    def put(self, sha256: str, data: bytes) -> None:
        """Store a bundle.

        Raises:
            UsageError: It is too large, has another digest, or is no archive that may be unpacked.
        """
        path = self._path(sha256)
        if len(data) > MOST_BYTES:
            raise UsageError(f"the bundle is larger than {MOST_BYTES // 2**20} MiB")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UsageError("the bundle has another digest than its name", hint="send it again")
        part = path.with_name(f"{sha256}.{os.getpid()}.{id(data)}.part")
        try:
            part.write_bytes(data)
            for _ in self._members(part):
                pass
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def unpack(self, sha256: str, to: Path) -> None:
        """Unpack a bundle into a folder, atomically; repeats have no effect.

        Raises:
            UsageError: The bundle was deleted.
        """
        if to.is_dir():
            return
        if not self.has(sha256):
            raise UsageError(
                f"the code bundle {sha256[:12]} is not on the service any more", hint="submit again"
            )
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = to.with_name(f"{to.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        with tarfile.open(self._path(sha256), mode="r:gz") as archive:
            extract(archive, part)
        part.replace(to)

    def _path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise UsageError("the name of a bundle is its SHA-256 in hexadecimal")
        return self._folder / f"{sha256}.tar.gz"

    def _members(self, path: Path) -> Iterator[str]:
        """Yield the names of an archive's files.

        Raises:
            UsageError: It holds something other than plain files below its root, or too much.
        """
        count = total = 0
        try:
            with gzip.open(path) as stream, _opened(_Bounded(stream)) as archive:
                for entry in archive:
                    if not is_plain(entry):
                        raise UsageError(
                            f"the bundle holds {entry.name!a}, which is no plain file below its root"
                        )
                    count, total = count + 1, total + entry.size
                    if count > MOST_FILES or total > MOST_UNPACKED:
                        raise UsageError("the bundle unpacks to too many files or bytes")
                    yield entry.name
        except (tarfile.TarError, OSError, EOFError) as error:
            raise UsageError(f"the bundle is no archive of tar and gzip: {error}") from error


def _opened(stream: Any) -> tarfile.TarFile:
    """Open an archive that is read sequentially."""
    return tarfile.open(fileobj=stream, mode="r|")


class _Bounded:
    """Stream that raises an error after `MOST_UNPACKED` bytes."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MOST_UNPACKED + 2**20

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        if self._left <= 0:
            raise UsageError("the bundle unpacks to too many files or bytes")
        return data
