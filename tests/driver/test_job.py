"""A search inside a scheduler's job ends before the job does."""

from __future__ import annotations

import logging

import pytest

from autotune.driver.spec import JOB_END, JOB_MARGIN_S, MIN_BUDGET_S, within_job

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("end", "requested_s", "given_s"),
    [
        ("", 7200.0, 7200.0),
        ("soon", 7200.0, 7200.0),
        (str(int(NOW_S) + 86_400), 7200.0, 7200.0),
        (str(int(NOW_S) + 3600), 7200.0, 3600.0 - JOB_MARGIN_S),
        (str(int(NOW_S) + 3600), 600.0, 600.0),
        (str(int(NOW_S) + 30), 7200.0, MIN_BUDGET_S),
        (str(int(NOW_S) - 30), 10.0, 10.0),
        (str(int(NOW_S) - 30), 7200.0, 7200.0),
    ],
)
def test_a_budget_is_cut_to_what_the_job_has_left(
    monkeypatch: pytest.MonkeyPatch, end: str, requested_s: float, given_s: float
) -> None:
    monkeypatch.setenv(JOB_END, end)
    assert within_job(requested_s, now_s=NOW_S) == given_s


def test_a_cut_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(JOB_END, str(int(NOW_S) + 3600))
    with caplog.at_level(logging.WARNING):
        within_job(7200.0, now_s=NOW_S)
        within_job(60.0, now_s=NOW_S)
    assert [r.getMessage() for r in caplog.records] == [
        "this job ends before a budget of 7200 s does: it is cut to 3540 s"
    ]
