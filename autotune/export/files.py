"""Files that are written completely or not at all, and never over a file of another origin."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, *, keep: bool) -> None:
    """Write a file through a temporary one in the same folder.

    Args:
        path: Destination. Of a link, the target is written.
        text: Content.
        keep: Copy an existing file to ``name.1.suffix``, ``name.2.suffix``, ... first.

    Raises:
        OSError: It cannot be written, or is no regular file; the old content is unchanged.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "no regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if keep:
            _keep_old(path)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _keep_old(path: Path) -> None:
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return
    number = 1
    while True:
        beside = path.with_name(f"{path.stem}.{number}{path.suffix}")
        try:
            with beside.open("xb") as stream:
                stream.write(old)
                stream.flush()
                os.fsync(stream.fileno())
        except FileExistsError:
            number += 1
        else:
            return


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
