"""What a dead driver left open: what is run again, and why half of an old pair is not."""

from __future__ import annotations

from typing import Any

import pytest
from session_fakes import FIDELITY, facts, measurement, spec

from autotune.driver.loop.recovery import PAIR_S, cut_cycles, is_run_again, unfinished, waits
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Stage, Trial, TrialState
from autotune.store.journal import Entry

NOW_S = 1_700_000_000.0
FAST = Config({"fused": True})


def entry(kind: str, wall_s: float, **data: Any) -> Entry:
    return Entry(seq=1, uid=f"{kind}/{data}", epoch=1, kind=kind, data=data, wall_s=wall_s)


def trial(number: int, config: Config, *, stage: Stage = Stage.CONFIRM, **more: Any) -> Trial:
    return Trial(
        number=number, config=config, stage=stage, reason="", fidelity=FIDELITY, **{"group": 1, **more}
    )


def is_again(
    open_one: Trial,
    *,
    outcome: Any = None,
    ago_s: float = 60.0,
    host: str = "here",
    up_s: float = 1e6,
    group: int = 1,
) -> bool:
    """With the script's half of the pair reported so long ago."""
    half = trial(4, Config(), group=group, state=TrialState.FINISHED, outcome=outcome or measurement(100.0))
    study = Study(spec=spec(), facts=facts(), trials=(half, open_one))
    entries = [
        entry("started", NOW_S - ago_s - 20.0, number=4, attempt=1, uid="t4", host=host),
        entry("finished", NOW_S - ago_s, number=4, attempt=1),
    ]
    return is_run_again(open_one, study, entries, wall_s=NOW_S, up_s=up_s, host="here")


def test_the_trial_in_flight_is_run_again_and_its_pair_kept() -> None:
    assert is_again(trial(5, FAST))
    assert is_again(trial(5, FAST), ago_s=PAIR_S)


@pytest.mark.parametrize(
    "of_another_day",
    [{"ago_s": PAIR_S + 1.0}, {"ago_s": -5.0}, {"host": "elsewhere"}, {"up_s": 30.0}],
    ids=["too long ago", "the clock was put back", "another host", "started anew since"],
)
def test_half_of_a_pair_of_another_day_is_given_up(of_another_day: dict[str, Any]) -> None:
    assert not is_again(trial(5, FAST), **of_another_day)


def test_where_no_other_half_was_measured_nothing_can_be_unlike() -> None:
    failed = Failure(kind=FailureKind.CRASH_EXIT, message="it broke")
    assert is_again(trial(5, FAST), outcome=failed, ago_s=1e6)
    assert is_again(trial(5, Config(), group=2), ago_s=1e6)


def test_screening_runs_are_proposed_again_whatever_the_day() -> None:
    assert is_again(trial(5, FAST, stage=Stage.REFINE, group=0), ago_s=1e6)


def test_what_only_explains_and_what_has_cost_several_lives_is_not() -> None:
    assert not is_again(trial(5, FAST, stage=Stage.DIAGNOSE, group=0))
    assert not is_again(trial(5, FAST, attempt=FailureKind.INFRA_LOST.repeats + 1))


def test_a_run_that_nobody_has_begun_with_has_cost_no_life_yet() -> None:
    open_one = trial(5, FAST, stage=Stage.REFINE, group=0, attempt=FailureKind.INFRA_LOST.repeats + 1)
    entries = [
        entry("proposed", 0.0, trial={"number": 5}),
        entry("started", 1.0, number=5, attempt=2, uid="t5", host="here"),
        entry("requeued", 2.0, number=5, attempt=2),
        entry("stopped", 3.0),
    ]
    study = Study(spec=spec(), facts=facts(), trials=(open_one,))
    assert waits(open_one, entries)
    assert is_run_again(open_one, study, entries, wall_s=NOW_S, up_s=1e6, host="here")
    begun = [*entries, entry("proposed", 4.0, trial={"number": 5})]
    assert not waits(open_one, begun)
    assert not is_run_again(open_one, study, begun, wall_s=NOW_S, up_s=1e6, host="here")


def cut(*trials: Trial, ago_s: float = 60.0, up_s: float = 1e6) -> set[tuple[Stage, int]]:
    """With every outcome reported so long ago."""
    reported = [
        e
        for t in trials
        for e in (
            entry("started", NOW_S - ago_s - 20.0, number=t.number, attempt=1, uid="t", host="here"),
            entry("finished", NOW_S - ago_s, number=t.number, attempt=1),
        )
    ]
    study = Study(spec=spec(), facts=facts(), trials=trials)
    return set(cut_cycles(study, reported, wall_s=NOW_S, up_s=up_s, host="here"))


def measured(number: int, config: Config, **more: Any) -> Trial:
    return trial(number, config, state=TrialState.FINISHED, outcome=measurement(100.0), **more)


def given_up(number: int, config: Config, **more: Any) -> Trial:
    failure = Failure(kind=FailureKind.KILLED_USER, message="the search ended while it ran")
    return trial(number, config, state=TrialState.FINISHED, outcome=failure, **more)


def test_the_last_cycle_of_each_kind_is_cut_where_it_is_of_another_day() -> None:
    line = (
        measured(4, Config(), group=1),
        measured(5, FAST, group=1),
        measured(6, FAST, group=2),
        measured(7, FAST, group=1, stage=Stage.ABLATE),
    )
    assert cut(*line) == set()
    assert cut(*line, ago_s=PAIR_S + 1.0) == {(Stage.CONFIRM, 2), (Stage.ABLATE, 1)}
    assert cut(*line, up_s=30.0) == {(Stage.CONFIRM, 2), (Stage.ABLATE, 1)}
    assert cut(measured(1, Config(), stage=Stage.BASELINE, group=0), ago_s=1e6) == set()


def test_a_cycle_whose_reference_was_given_up_has_nothing_to_compare_with() -> None:
    assert cut(given_up(4, Config())) == {(Stage.CONFIRM, 1)}
    assert cut(measured(4, Config()), given_up(5, FAST)) == set()
    slow = Config({"fused": False})
    both = Config({"fused": True, "threads": 2})
    assert cut(given_up(4, both, stage=Stage.ABLATE), measured(5, FAST, stage=Stage.ABLATE)) == {
        (Stage.ABLATE, 1)
    }
    assert cut(measured(4, both, stage=Stage.ABLATE), given_up(5, slow, stage=Stage.ABLATE)) == set()


def test_attempts_that_reported_nothing_on_this_host_are_cleared_up_behind() -> None:
    entries = [
        entry("started", 0.0, number=0, attempt=1, uid="finished", host="here"),
        entry("finished", 1.0, number=0, attempt=1),
        entry("started", 2.0, number=1, attempt=1, uid="requeued", host="here"),
        entry("requeued", 3.0, number=1, attempt=1),
        entry("started", 4.0, number=1, attempt=2, uid="open", host="here"),
        entry("started", 5.0, number=2, attempt=1, uid="far", host="elsewhere"),
        entry("started", 6.0, number=3, attempt=1, uid="repeated", host="here"),
        entry("requeued", 7.0, number=3, attempt=1, ended=True),
    ]
    assert unfinished(entries, "here") == {"open", "requeued"}
