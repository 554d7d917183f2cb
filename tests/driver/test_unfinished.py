"""What a dead driver left open: what is run again, and why half of an old pair is not."""

from __future__ import annotations

from typing import Any

import pytest
from session_fakes import FIDELITY, facts, measurement, spec

from autotune.core.config import Config
from autotune.core.study import Study
from autotune.core.trial import Failure, FailureKind, Stage, Trial, TrialState
from autotune.driver.unfinished import PAIR_S, is_asked_again, unfinished
from autotune.store.journal import Entry

NOW_S = 1_700_000_000.0
FAST = Config({"fused": True})


def entry(kind: str, wall_s: float, **data: Any) -> Entry:
    return Entry(seq=1, uid=f"{kind}/{data}", epoch=1, kind=kind, data=data, wall_s=wall_s)


def trial(number: int, config: Config, *, stage: Stage = Stage.CONFIRM, **more: Any) -> Trial:
    return Trial(
        number=number, config=config, stage=stage, reason="", fidelity=FIDELITY, **{"group": 1, **more}
    )


def asked_again(
    open_one: Trial,
    *,
    outcome: Any = None,
    ago_s: float = 60.0,
    host: str = "here",
    up_s: float = 1e6,
    group: int = 1,
) -> bool:
    """With the script's half of the pair told so long ago."""
    half = trial(4, Config(), group=group, state=TrialState.TOLD, outcome=outcome or measurement(100.0))
    study = Study(spec=spec(), facts=facts(), trials=(half, open_one))
    entries = [
        entry("started", NOW_S - ago_s - 20.0, number=4, attempt=1, uid="t4", host=host),
        entry("told", NOW_S - ago_s, number=4, attempt=1),
    ]
    return is_asked_again(open_one, study, entries, wall_s=NOW_S, up_s=up_s, host="here")


def test_the_trial_in_flight_is_run_again_and_its_pair_kept() -> None:
    assert asked_again(trial(5, FAST))
    assert asked_again(trial(5, FAST), ago_s=PAIR_S)


@pytest.mark.parametrize(
    "of_another_day",
    [{"ago_s": PAIR_S + 1.0}, {"ago_s": -5.0}, {"host": "elsewhere"}, {"up_s": 30.0}],
    ids=["too long ago", "the clock was put back", "another host", "started anew since"],
)
def test_half_of_a_pair_of_another_day_is_given_up(of_another_day: dict[str, Any]) -> None:
    assert not asked_again(trial(5, FAST), **of_another_day)


def test_where_no_other_half_was_measured_nothing_can_be_unlike() -> None:
    failed = Failure(kind=FailureKind.CRASH_EXIT, message="it broke")
    assert asked_again(trial(5, FAST), outcome=failed, ago_s=1e6)
    assert asked_again(trial(5, Config(), group=2), ago_s=1e6)


def test_screening_runs_are_asked_again_whatever_the_day() -> None:
    assert asked_again(trial(5, FAST, stage=Stage.REFINE, group=0), ago_s=1e6)


def test_what_only_explains_and_what_has_cost_several_lives_is_not() -> None:
    assert not asked_again(trial(5, FAST, stage=Stage.WHY, group=0))
    assert not asked_again(trial(5, FAST, attempt=FailureKind.INFRA_LOST.repeats + 1))


def test_attempts_without_an_end_on_this_host_are_a_dead_drivers() -> None:
    entries = [
        entry("started", 0.0, number=0, attempt=1, uid="told", host="here"),
        entry("told", 1.0, number=0, attempt=1),
        entry("started", 2.0, number=1, attempt=1, uid="requeued", host="here"),
        entry("requeued", 3.0, number=1, attempt=1),
        entry("started", 4.0, number=1, attempt=2, uid="open", host="here"),
        entry("started", 5.0, number=2, attempt=1, uid="far", host="elsewhere"),
    ]
    assert unfinished(entries, "here") == {"open"}
