"""Archive of a search's study: its complete journal and its best.yaml."""

from __future__ import annotations

import io
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from autotune.store.paths import JOURNAL_FILE, newest_study_dirs


def archive_of(home: Path, best: Path) -> bytes | None:
    """Return a tar archive (gzip); None if there is no study below this home."""
    study = next(iter(newest_study_dirs(home)), None)
    if study is None or not (study / JOURNAL_FILE).is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        # Not the file alone: committed entries may be in the write-ahead log beside it.
        copy = Path(folder, JOURNAL_FILE)
        address = f"file:{study / JOURNAL_FILE}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            archive.add(copy, JOURNAL_FILE)
            if best.is_file():
                archive.add(best, "best.yaml")
        return made.getvalue()
