"""An MLflow that fails is on nobody's way, and later holds what the journal holds."""

from __future__ import annotations

import http.client
import urllib.parse
from unittest import mock

import pytest
from faultbed import trackers

from autotune.driver.session import Session
from autotune.driver.sync import Syncer
from autotune.report.mlflow import MlflowSink

pytestmark = [pytest.mark.slow, pytest.mark.mlflow, pytest.mark.timeout(300)]

CASES = {case["mode"]: case for case in trackers.sample()}


@pytest.mark.parametrize("case", trackers.sample(), ids=lambda case: case["key"])
def test_a_failing_tracker_delays_no_trial_and_loses_nothing(injected, is_clean, case) -> None:
    is_clean(injected(trackers, case))


def test_rows_acknowledged_before_they_are_sent_are_lost(injected) -> None:
    def forgetful(syncer, row):
        syncer._journal.ack(row.seq)

    count = injected(trackers, CASES["error 500"], patches=(mock.patch.object(Syncer, "_send", forgetful),))
    assert count.lost > 0


def test_without_looking_for_runs_that_are_there_they_are_made_twice(
    injected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MlflowSink, "_search", lambda *_: [])
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
