"""Sending is on nobody's way: a store that is away costs no time and loses nothing."""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.driver.sinks import sync
from autotune.driver.sinks.sync import Syncer, study_paths, sync_study
from autotune.errors import StoreError, StudyLocked, TrackerUnavailable
from autotune.report.mlflow.recorder import Refused
from autotune.store.fold import fold
from autotune.store.journal import Journal

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made

ALL = 9


class Recorder:
    """A sink that remembers, and fails as it is set to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None]] = []
        self.payloads: list[Mapping[str, Any]] = []
        self.opened = 0
        self.refused = 0
        self.is_down = False
        self.refuses: set[int] = set()
        self.thread = ""
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> None:
        self.opened += 1
        self.thread = threading.current_thread().name
        self.gate.wait(10)
        if self.is_down:
            message = "MLflow at nowhere cannot be reached"
            raise TrackerUnavailable(message)

    def send(self, op: str, payload: Mapping[str, Any], study: Any, answer: Any = None) -> None:
        if payload.get("number") in self.refuses:
            self.refused += 1
            message = "no"
            raise Refused(message)
        self.sent.append((op, payload.get("number")))
        self.payloads.append(payload)

    def links(self) -> dict[str, str]:
        return {"answer": "autotune ui"}


def write(journal: Journal) -> None:
    for event in made.events():
        journal.append(event.kind, event.uid, event.data, outbox=event.outbox)


@pytest.fixture(autouse=True)
def _answer(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the answer is, is tested elsewhere; the studies here are made by hand.
    monkeypatch.setattr(sync, "_answer", lambda study: made.found())


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path / "study", ballast_bytes=0, environ={}) as opened:
        write(opened)
        yield opened


def syncer(journal: Journal, sink: Any, **more: Any) -> Syncer:
    return Syncer(journal, made.study, lambda: sink, **{"idle_s": 0.01, "back_off_s": 0.01, **more})


def test_everything_is_sent_once_in_order_and_acknowledged(journal: Journal) -> None:
    sink = Recorder()
    sending = syncer(journal, sink)
    assert sending.flush(10) == 0
    assert sink.sent == [
        ("study_began", None),
        *(("trial_ended", n) for n in range(7)),
        ("study_ended", None),
    ]
    assert sink.payloads[1]["wall_s"] > made.WALL_S, "when it was written, not when it is sent"
    assert sink.thread == "autotune-sync"
    assert sending.links() == {"answer": "autotune ui"}
    assert syncer(journal, second := Recorder()).flush(10) == 0
    assert second.sent == []


def test_rows_that_come_later_are_sent_too(journal: Journal) -> None:
    sink = Recorder()
    sending = syncer(journal, sink)
    assert sending.warm_up(10)
    journal.append(
        "stopped",
        "stopped/2",
        {"why": "signal", "elapsed_s": 200.0},
        outbox=made.Event("stopped", "stopped/2", {"why": "signal", "elapsed_s": 200.0}).outbox,
    )
    assert sending.flush(10) == 0
    assert len(sink.sent) == ALL + 1
    assert sink.payloads[-1]["why"] == "signal"


def test_warming_up_waits_for_the_store_and_no_longer_than_reported(journal: Journal) -> None:
    sink = Recorder()
    sink.gate.clear()
    sending = syncer(journal, sink)
    begun = time.monotonic()
    assert not sending.warm_up(0.05)
    assert time.monotonic() - begun < 2
    sink.gate.set()
    assert sending.warm_up(10)
    assert sending.flush(10) == 0


def test_a_store_that_is_away_costs_no_time_is_reported_once_and_keeps_everything(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Recorder()
    sink.is_down = True
    sending = syncer(journal, sink, back_off_s=100.0)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert not sending.warm_up(30)
        assert sending.flush(30) == ALL
    assert time.monotonic() - begun < 5
    assert [r.getMessage() for r in caplog.records] == [
        "MLflow at nowhere cannot be reached. The search continues; `autotune sync` sends the records later."
    ]
    assert sink.opened == 2, "once at first, once more at the end, and not in between"
    assert sending.links() == {}


def test_a_flush_is_cut_short_where_somebody_wants_to_go(journal: Journal) -> None:
    sink = Recorder()
    sink.gate.clear()
    sending = syncer(journal, sink)
    timer = threading.Timer(0.2, sending.hurry)
    timer.start()
    begun = time.monotonic()
    assert sending.flush(60) == ALL
    assert time.monotonic() - begun < 8, "the store takes ten seconds"
    timer.join()
    sink.gate.set()


def test_a_store_that_comes_back_gets_everything(journal: Journal) -> None:
    sink = Recorder()
    sink.is_down = True
    sending = syncer(journal, sink)
    assert not sending.warm_up(30)
    sink.is_down = False
    assert sending.flush(30) == 0
    assert len(sink.sent) == ALL


def test_the_longer_a_store_is_away_the_less_often_it_is_requested(journal: Journal) -> None:
    sink = Recorder()
    sending = syncer(journal, sink, back_off_s=1.0)
    waits: list[float] = []
    sending._wait = waits.append  # type: ignore[method-assign]
    for _ in range(9):
        sending._failed(TrackerUnavailable("away"))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_refused_row_does_not_hold_up_the_others(journal: Journal) -> None:
    sink = Recorder()
    sink.refuses = {0, 3}
    assert syncer(journal, sink).flush(5) == 2
    assert sink.refused == 2, "each is tried once in this life"
    assert [n for op, n in sink.sent if op == "trial_ended"] == [1, 2, 4, 5, 6]
    again = Recorder()
    assert syncer(journal, again).flush(10) == 0
    assert [n for _, n in again.sent] == [0, 3], "another life tries them again"


def test_a_fault_of_our_own_ends_nothing(journal: Journal) -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    assert Syncer(journal, made.study, broken, back_off_s=0.01).flush(10) == ALL
    bad_study = Syncer(journal, lambda: 1 / 0, Recorder, back_off_s=0.01)  # type: ignore[arg-type,return-value]
    assert bad_study.flush(10) == ALL


def test_a_journal_closed_under_the_thread_is_no_error(journal: Journal) -> None:
    sink = Recorder()
    sink.gate.clear()
    sending = syncer(journal, sink)
    sending.start()
    assert sending.flush(0.05) == ALL
    journal.close()
    sink.gate.set()
    assert sending._thread is not None
    sending._thread.join(5)
    assert not sending._thread.is_alive()


def test_the_file_beside_the_journal_goes_along(journal: Journal) -> None:
    (journal.file.parent / "best.yaml").write_text("picks: {}\n")
    sink = Recorder()
    assert syncer(journal, sink).flush(10) == 0
    assert sink.payloads[-1]["best_yaml"] == "picks: {}\n"


def test_a_study_is_sent_later_by_its_path(tmp_path: Path) -> None:
    with Journal.create(tmp_path, ballast_bytes=0, environ={}) as journal:
        write(journal)
        with pytest.raises(StudyLocked):
            sync_study(tmp_path, sink=Recorder)
    sink = Recorder()
    assert sync_study(tmp_path, sink=lambda: sink) == 0
    assert len(sink.sent) == ALL
    assert sync_study(tmp_path, sink=lambda: sink) == 0
    assert len(sink.sent) == ALL
    assert sync_study(tmp_path, again=True, sink=lambda: sink) == 0
    assert sink.sent[ALL:] == sink.sent[:ALL], "for a store that was deleted"


def test_what_is_to_be_sent_again_and_finds_no_store_waits_for_it(tmp_path: Path) -> None:
    with Journal.create(tmp_path, ballast_bytes=0, environ={}) as journal:
        write(journal)
    assert sync_study(tmp_path, sink=Recorder) == 0
    gone = Recorder()
    gone.is_down = True
    assert sync_study(tmp_path, again=True, sink=lambda: gone) == ALL
    back = Recorder()
    assert sync_study(tmp_path, sink=lambda: back) == 0
    assert len(back.sent) == ALL


def test_a_relative_address_that_is_typed_is_meant_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.create(tmp_path, ballast_bytes=0, environ={}) as journal:
        for event in made.events(tracking_uri="sqlite:///own.db"):
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sync.MlflowSink, "find", lambda self, study: {})
    assert study_paths(tmp_path)[0] == "sqlite:////w/own.db", "where the search was begun"
    assert study_paths(tmp_path, tracking_uri="sqlite:///typed.db")[0] == f"sqlite:///{tmp_path}/typed.db"


def test_an_address_whose_secret_was_not_kept_must_be_given_again(tmp_path: Path) -> None:
    with Journal.create(tmp_path, ballast_bytes=0, environ={}) as journal:
        for event in made.events(tracking_uri="http://me:secret@host"):
            journal.append(event.kind, event.uid, event.data, outbox=event.outbox)
    with pytest.raises(StoreError, match="not kept") as caught:
        sync_study(tmp_path, sink=Recorder)
    assert "secret@" not in caught.value.message
    with pytest.raises(StoreError, match="not kept") as caught:
        study_paths(tmp_path)
    assert "--tracking-uri" in caught.value.hint
    assert sync_study(tmp_path, tracking_uri="http://me:secret@host", sink=Recorder) == 0


def runs(uri: str) -> tuple[int, int, int]:
    client = pytest.importorskip("mlflow").MlflowClient(tracking_uri=uri)
    found = [
        run
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id])
    ]
    children = [r.data.tags["autotune.trial_uid"] for r in found if "autotune.trial_uid" in r.data.tags]
    return len(found) - len(children), len(children), len(set(children))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.migrated_store(tmp_path_factory.getbasetemp())


@pytest.mark.mlflow
def test_after_an_outage_a_real_store_holds_every_run_once(tmp_path: Path, template: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    study_path = tmp_path / "study"
    with Journal.create(study_path, ballast_bytes=0, environ={}) as journal:
        sending = Syncer(journal, lambda: fold(journal.entries()), tracking_uri=address)
        begun = time.monotonic()
        sending.warm_up(30)
        warm_s = time.monotonic() - begun
        write(journal)
        assert sending.flush(20) == ALL
    assert time.monotonic() - begun - warm_s < 8, "a closed port answers at once"
    shutil.copy(template, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert sync_study(study_path, 60, tracking_uri=uri) == 0
    assert runs(uri) == (1, 7, 7)
    assert sync_study(study_path, 60, tracking_uri=uri, again=True) == 0
    assert runs(uri) == (1, 7, 7)
