"""Journals that earlier versions wrote are read, brought to today's form, and gone on with.

The samples are journals of whole searches over a world of `autotune.launch.fake`, each written by the
version of the day it is named after. One is added when what is written changes; none is ever made anew.
"""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path

import pytest

from autotune.errors import JournalDamaged
from autotune.model.measurement import Measurement
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.model.wire import OLD_EVENTS, to_wire
from autotune.store.fold import fold
from autotune.store.journal import FORMAT, Journal

SAMPLES = sorted(Path(__file__).with_name("samples").glob("*.db.gz"))
KEPT_NO_HEAD = "2026-11-21-1410"
STAGES = {Stage.BASELINE: 2, Stage.INITIAL: 2, Stage.REFINE: 1, Stage.CONFIRM: 6}
"""Finished trials of each stage, in searches of the first day."""
STAGES_LATER = {
    "2026-11-23-0800": {
        Stage.BASELINE: 2,
        Stage.INITIAL: 6,
        Stage.REFINE: 3,
        Stage.CONFIRM: 13,
        Stage.ABLATE: 12,
    }
}


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name.split(".")[0])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a study as that version left it."""
    folder = tmp_path / request.param.name.split(".")[0]
    folder.mkdir()
    (folder / "journal.db").write_bytes(gzip.decompress(request.param.read_bytes()))
    return folder


def head(folder: Path) -> str:
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as raw:
        row = raw.execute("SELECT value FROM meta WHERE key = 'head'").fetchone()
    return "" if row is None else str(row[0])


def read(folder: Path) -> Study:
    with contextlib.closing(Journal.read(folder)) as journal:
        return fold(journal.entries())


def test_there_are_samples_of_every_form_so_far() -> None:
    assert len(SAMPLES) >= 3
    assert any(path.name.startswith(KEPT_NO_HEAD) for path in SAMPLES)


def test_it_reports_the_same_study_as_when_it_was_written(old: Path) -> None:
    study = read(old)
    stages = STAGES_LATER.get(old.name, STAGES)
    assert {stage: len(study.finished(stage)) for stage in stages} == stages
    assert len(study.finished()) == sum(stages.values())
    kinds = [t.outcome.kind for t in study.trials if isinstance(t.outcome, Failure)]
    assert kinds == [FailureKind.CRASH_EXIT] * 2
    for trial in study.trials:
        if isinstance(trial.outcome, Measurement):
            assert trial.outcome.throughput.low < trial.outcome.throughput.value
            assert trial.outcome.loss
    assert study.stopped == "finished"


def test_opened_for_writing_it_takes_todays_form_and_reports_the_same(old: Path) -> None:
    before = read(old)
    assert bool(head(old)) is (old.name != KEPT_NO_HEAD)
    with Journal.open(old, ballast_bytes=0) as journal:
        number = journal.append("noted", "noted/later", to_wire({"text": "gone on with"}))
    assert int(head(old).split()[0]) == number
    assert read(old) == before
    with contextlib.closing(sqlite3.connect(old / "journal.db")) as raw:
        assert raw.execute("SELECT value FROM meta WHERE key = 'format'").fetchall() == [(str(FORMAT),)]


def test_its_events_have_the_kinds_of_today(old: Path) -> None:
    with contextlib.closing(sqlite3.connect(old / "journal.db")) as raw:
        written = {kind for (kind,) in raw.execute("SELECT kind FROM events")}
    with contextlib.closing(Journal.read(old)) as journal:
        kinds = {entry.kind for entry in journal.entries()}
    assert {"asked", "told"} <= written
    assert kinds == {OLD_EVENTS.get(kind, kind) for kind in written}
    assert {"proposed", "finished"} <= kinds


def test_once_in_todays_form_a_missing_end_is_noticed(old: Path) -> None:
    with Journal.open(old, ballast_bytes=0) as journal:
        last = journal.append("noted", "noted/later", {})
    with contextlib.closing(sqlite3.connect(old / "journal.db")) as raw, raw:
        raw.execute("DELETE FROM events WHERE seq = ?", (last,))
    with pytest.raises(JournalDamaged, match="missing at the end"):
        read(old)


def test_records_of_a_feature_that_was_removed_are_passed_over(tmp_path: Path) -> None:
    sample = Path(__file__).with_name("samples") / "removed" / "in_process_segments.db.gz"
    (tmp_path / "journal.db").write_bytes(gzip.decompress(sample.read_bytes()))
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as raw:
        texts = [text for (text,) in raw.execute("SELECT json FROM events")]
    assert any('"visited":{' in text for text in texts)
    assert '"live":true' in texts[0]
    study = read(tmp_path)
    assert len(study.finished()) == len(study.trials) == 17
    assert study.stopped == "finished"
