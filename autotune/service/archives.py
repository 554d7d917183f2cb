"""Safe extraction of tar archives."""

from __future__ import annotations

import tarfile
from pathlib import Path


def is_plain(entry: tarfile.TarInfo) -> bool:
    """Return whether an entry is a regular file or folder below the archive's root."""
    is_below = not entry.name.startswith("/") and ".." not in Path(entry.name).parts
    return is_below and (entry.isfile() or entry.isdir())


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive of regular files into a folder.

    Python's own filter also limits permissions; versions before 3.10.12 and 3.11.4 have none.

    Raises:
        tarfile.TarError: An entry is something else, or leads out of the folder; nothing is extracted.
    """
    entries = archive.getmembers()
    for entry in entries:
        if not is_plain(entry):
            message = f"{entry.name!a} is no regular file below the archive's root"
            raise tarfile.TarError(message)
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder, entries)  # noqa: S202 (its entries were checked above)
