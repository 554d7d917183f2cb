"""A broken store is filled again from the journals."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.main import run
from autotune.driver.sinks import sync
from autotune.driver.sinks.mlflow_refill import is_due, refill
from autotune.store.journal import Journal
from autotune.store.paths import default_store, home, study_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made

FIRST, SECOND, THIRD = (f"01JD000000000000000000000{number}" for number in range(3))


def begin(study_id: str, **changes: Any) -> Path:
    with Journal.create(study_dir(study_id), ballast_bytes=0, environ={}) as journal:
        for event in made.events(study_id=study_id, label=f"train-{study_id[-1]}", **changes):
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
    return study_dir(study_id)


def broken() -> None:
    home().mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(default_store())) as connection:
        connection.execute("CREATE TABLE _alembic_tmp_runs (name TEXT)")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Studies that were sent again, in order; the store is taken for mended."""
    found: list[str] = []

    def sync_study(path: Path, _deadline_s: float, *, again: bool) -> int:
        assert again
        with Journal.open(path, ballast_bytes=0):
            found.append(path.name)
        default_store().unlink(missing_ok=True)
        return 0

    monkeypatch.setattr(sync, "sync_study", sync_study)
    return found


def test_every_study_of_the_default_store_is_sent_again_the_oldest_first(sent: list[str]) -> None:
    begin(SECOND)
    begin(FIRST)
    begin(THIRD, tracking_uri="http://elsewhere:5000")
    assert not is_due()
    broken()
    assert is_due()
    refill()
    assert sent == [FIRST, SECOND]
    assert not is_due()


def test_a_study_that_is_being_searched_is_sent_by_the_next_call(sent: list[str]) -> None:
    begin(FIRST)
    path = begin(SECOND)
    broken()
    Path(f"{default_store()}.refill").touch()
    with Journal.open(path, ballast_bytes=0):
        refill()
        assert sent == [FIRST]
        assert is_due()
    refill()
    assert sent == [FIRST, FIRST, SECOND]
    assert not is_due()


def test_a_journal_that_cannot_be_read_holds_up_no_other(sent: list[str]) -> None:
    begin(FIRST)
    begin(SECOND)
    with contextlib.closing(sqlite3.connect(study_dir(FIRST) / "journal.db")) as connection:
        connection.execute("UPDATE events SET json = json || ' ' WHERE seq = 3")
        connection.commit()
    broken()
    refill()
    assert sent == [SECOND]
    assert not is_due()


def labels() -> set[str]:
    with contextlib.closing(sqlite3.connect(default_store())) as connection:
        rows = connection.execute("SELECT value FROM tags WHERE key = 'autotune.label'")
        return {label for (label,) in rows}


LATER = """
import sys
import autotune.cli.commands.ui as ui
from autotune.cli.main import run
ui._serve = lambda uri, port, paths, opened, *_: 0 if "answer" in paths else 1
run(["doctor", "--check-mlflow"])
code = run([sys.argv[1], "train-1"])
run(["doctor", "--check-mlflow"])
sys.exit(code)
"""


@pytest.mark.mlflow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ["sync", "ui"])
def test_sync_and_ui_move_a_broken_store_aside_and_show_all_studies_in_a_new_one(verb: str) -> None:
    begin(FIRST)
    begin(SECOND)
    for label in ("train-0", "train-1"):
        assert run(["sync", label]) == 0
    assert labels() == {"train-0", "train-1"}
    with contextlib.closing(sqlite3.connect(default_store())) as connection:
        connection.execute("CREATE TABLE _alembic_tmp_runs (name TEXT)")
    done = subprocess.run(
        [sys.executable, "-c", LATER, verb], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = (line for line in done.stdout.splitlines() if "mlflow store" in line)
    assert "is broken: an update of its tables was interrupted" in before
    assert "mlflow.db, opened" in after
    assert labels() == {"train-0", "train-1"}
    kept = {path.name for path in home().iterdir() if path.name.startswith("mlflow")}
    assert kept == {"mlflow.db", "mlflow.db.broken-1"}
