"""Old searches go with their files; a backup is a whole database."""

import os
import sqlite3

import pytest
from service_fakes import submission

from autotune.errors import UsageError
from autotune.service.retention import backup, forget
from autotune.service.states import SearchState
from autotune.service.store import Database


def test_what_ended_long_ago_goes_with_its_files_and_unused_bundles(database, bundles, place, clock):
    old, _ = database.submit(submission(bundle="1" * 64))
    kept, _ = database.submit(submission(key="key-00002", bundle="2" * 64))
    database.create_token(user="ann", scope="report", search_id=old.id)
    database.move(old.id, SearchState.QUEUED, SearchState.CANCELLED, "x")
    folders = [place.search(old.id), place.root / "jobs" / f"autotune-{old.id}-1", place.search(kept.id)]
    for folder in folders:
        folder.mkdir(parents=True)
    for digit in "123":
        path = place.root / "bundles" / f"{digit * 64}.tar.gz"
        path.write_bytes(b"x")
        if digit != "3":
            os.utime(path, (0, 0))
    clock.pass_(100)
    assert forget(database, place, 50.0) == [old.id]
    assert [folder.exists() for folder in folders] == [False, False, True]
    left = sorted(path.name[0] for path in (place.root / "bundles").iterdir())
    assert left == ["2", "3"], "one is used, and one was just uploaded"
    assert forget(database, place, 50.0) == []


def test_a_backup_of_a_running_service_is_whole_and_private(tmp_path):
    path = tmp_path / "service.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    row, _ = database.submit(submission())
    backup(path, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    copy = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    assert copy.search(row.id).title == "train.py"
    with pytest.raises(UsageError, match="exists already"):
        backup(path, tmp_path / "copy.db")
    with pytest.raises(UsageError, match="no database"):
        backup(tmp_path / "other.db", tmp_path / "copy2.db")
    for one in (database, copy):
        one.engine.dispose()
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
