"""Deletion of old searches, and a backup of the database of a running service."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.service.reconcile import Place
    from autotune.service.store import Database


def forget(database: Database, place: Place, older_than_s: float) -> list[str]:
    """Delete searches that ended this long ago, with their files, and unused bundles.

    Returns:
        Ids of the deleted searches.
    """
    ids = database.forget(older_than_s)
    for search_id in ids:
        shutil.rmtree(place.search(search_id), ignore_errors=True)
        for job in (place.root / "jobs").glob(f"autotune-{search_id}-*"):
            shutil.rmtree(job, ignore_errors=True)
    used = database.bundles()
    for bundle in (place.root / "bundles").glob("*.tar.gz"):
        # A bundle that was just uploaded is about to be submitted.
        is_old = time.time() - bundle.stat().st_mtime > older_than_s
        if is_old and bundle.name.removesuffix(".tar.gz") not in used:
            bundle.unlink(missing_ok=True)
    return ids


def backup(database: Path, to: Path) -> None:
    """Copy the SQLite database of a service that may run.

    Raises:
        UsageError: There is no such database, or the copy exists already.
    """
    if not database.is_file():
        raise UsageError(
            f"there is no database {database}",
            hint="--data DIR names the service's folder; of PostgreSQL: pg_dump",
        )
    try:
        os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        raise UsageError(f"{to} exists already", hint="choose another name") from error
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
