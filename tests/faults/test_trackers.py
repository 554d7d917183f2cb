"""An MLflow that fails is on nobody's way, and later holds what the journal holds."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.parse
from pathlib import Path
from unittest import mock

import pytest
from faultbed import search, trackers
from faultbed.common import Child

from autotune.driver.loop.session import Session
from autotune.driver.sinks.sync import Syncer
from autotune.report.mlflow.experiment import Experiment

pytestmark = [pytest.mark.slow, pytest.mark.mlflow, pytest.mark.timeout(1800)]

BUSY_S = 120.0
"""The fault suite holds a trial to its 4 seconds; here other tests may run beside."""

CASES = {case["mode"]: case for case in trackers.sample()}


@pytest.mark.parametrize("case", trackers.sample(), ids=lambda case: case["key"])
def test_a_failing_tracker_delays_no_trial_and_loses_nothing(injected, is_clean, case) -> None:
    is_clean(injected(trackers, case, longest_s=BUSY_S))


def test_rows_acknowledged_before_they_are_sent_are_lost(injected) -> None:
    def forgetful(syncer, row):
        syncer._journal.ack(row.seq)

    count = injected(trackers, CASES["error 500"], patches=(mock.patch.object(Syncer, "_send", forgetful),))
    assert count.lost > 0


def test_without_looking_for_runs_that_are_there_they_are_made_twice(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Experiment, "runs", lambda *_: [])
    count = injected(trackers, {**CASES["reset"], "after": 5})
    assert count.duplicated > 0


def test_a_call_from_the_search_itself_is_seen(injected) -> None:
    tell = Session.tell

    def tell_and_ask(session, *what):
        address = urllib.parse.urlsplit(session.study.spec.tracking_uri)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=5)
        connection.putrequest("GET", "/version")
        connection.close()
        return tell(session, *what)

    count = injected(
        trackers,
        {**CASES["comes back"], "after": 30},
        patches=(mock.patch.object(Session, "tell", tell_and_ask),),
    )
    assert any("MainThread" in note for note in count.notes)


class Refusing(search.Nowhere):
    """A tracker that is not there."""

    def open(self) -> None:
        raise ConnectionRefusedError


class Failing(search.Nowhere):
    """A tracker that is there and takes nothing, after a while."""

    def send(self, *_: object) -> None:
        time.sleep(0.2)
        raise ConnectionResetError


def _reported(folder: Path, sink: type, **more: int) -> list[str]:
    """Every event of a search in simulated time, without what names its process and its place."""
    home = search.begin(folder, **more)
    with Child(lambda: search.lived(home, sink=sink), folder / "driver.log") as child:
        assert child.wait(search.LIFE_S)
    assert "picks" in child.answer
    # The label of an event is of the clock on the wall; what counts is in it.
    rows = [
        json.dumps([e.uid, {k: v for k, v in e.data.items() if k not in ("pid", "wall_s")}], sort_keys=True)
        for e in search.entries(home)
    ]
    return [re.sub(r"(-a\d+)-[0-9a-f]{6}", r"\1", row.replace(str(folder), "")) for row in rows]


@pytest.mark.parametrize("ill", [Refusing, Failing])
def test_in_replay_a_search_beside_a_failing_tracker_is_the_same_to_the_last_event(
    tmp_path: Path, ill: type
) -> None:
    well = _reported(tmp_path / "well", search.Nowhere)
    assert len(well) > 30
    assert _reported(tmp_path / "ill", ill) == well


def test_a_search_that_took_another_course_is_not_the_same(tmp_path: Path) -> None:
    reported = [_reported(tmp_path / str(n), search.Nowhere, trials=n) for n in (8, 9)]
    assert reported[0] != reported[1]
    # Nor by the spec alone, which says how many trials were requested.
    assert [row for row in reported[0] if "finished/" in row] != [
        row for row in reported[1] if "finished/" in row
    ]
