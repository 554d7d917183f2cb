"""The race of two samplers on the clock: what was recommended when, and who was there first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import race
import recorded_world
import score
import timer
from search_world import measurement, spec, tell, usual_space

from autotune.answer.pick import answer_or_none
from autotune.model.config import Config, Value
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.testing.replay import replay

FAST, SLOW = {"threads": 1}, {"threads": 2}
GAINS = {race.SCRIPT: 1.0, race.key(FAST): 2.0, race.key(SLOW): 1.5}


def point(at_s: float, by_model: dict[str, Any], by_reading: dict[str, Any] | None = None) -> list[Any]:
    return [at_s, {"by_model": by_model, "by_reading": by_model if by_reading is None else by_reading}]


def searched(sampler: str, *course: list[Any], seed: int = 0) -> dict[str, Any]:
    return {
        "sampler": sampler,
        "seed": seed,
        "course": list(course),
        "answer": course[-1][1]["by_model"],
        "trials": len(course),
        "failures": 0,
    }


def state(*searches: dict[str, Any]) -> dict[str, Any]:
    rates = {arm: 100 * gain for arm, gain in GAINS.items()}
    runs = [{"cycle": c, "arm": arm, "samples_per_s": rate} for c in range(3) for arm, rate in rates.items()]
    return {
        "workload": "made_up",
        "budget": "10m",
        "budget_s": 600.0,
        "searches": list(searches),
        "runs": runs,
        "machine": {"cores": 2, "cpu": "X"},
    }


@pytest.mark.parametrize("sampler", race.SAMPLERS)
def test_a_course_from_the_journal_is_what_was_seen_on_the_way(sampler: str) -> None:
    seen: list[dict[str, Any]] = []

    def each(study: Any, _trial: Any) -> None:
        if study.space is None:
            return
        now = {"by_model": dict(score.recommended(study)), "by_reading": dict(score.read_fastest(study))}
        if not seen or seen[-1] != now:
            seen.append(now)

    study = replay(recorded_world.table(), budget_s=150.0, sampler=sampler, each=each).study
    *on_the_way, last = race.course(study, answer_or_none(study))
    assert len(seen) > 1
    assert [what for _, what in on_the_way] == seen
    assert last[0] == pytest.approx(study.elapsed_s, abs=0.1)
    found = answer_or_none(study)
    won = dict(found.best.config) if found is not None and found.is_better else {}
    assert last[1] == {"by_model": won, "by_reading": dict(score.read_fastest(study))}


def test_what_changes_the_training_is_never_named_for_having_read_fastest() -> None:
    built = Study(spec=spec(), space=usual_space())
    reported: list[tuple[dict[str, Value], float]] = [({}, 100.0), ({"threads": 4}, 120.0)]
    for values, rate in (*reported, ({"effective_batch": 128}, 190.0)):
        stage = Stage.REFINE if values else Stage.BASELINE
        fidelity = Fidelity(
            min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30
        )
        proposal = Proposal(stage=stage, config=Config(values), fidelity=fidelity, reason="x")
        built = tell(built, proposal, measurement(rate), 7.0)
    assert score.read_fastest(built) == Config({"threads": 4})
    assert race.changing(built) == {"screening": [2, 14.0, 1, 7.0], "confirmation": [0, 0, 0, 0]}


def test_what_read_fastest_and_was_not_proved_has_arrived_by_readings() -> None:
    never_proved = searched("tpe", point(40, FAST, FAST), point(500, {}, FAST))
    assert race.arrivals(never_proved, GAINS, 2.0) == {
        "by_model": {5: None, 2: None},
        "by_reading": {5: 40, 2: 40},
    }


def test_the_fastest_is_rated_by_cycles_that_did_not_choose_it() -> None:
    fast, slow = race.key(FAST), race.key(SLOW)
    lucky = [{fast: 2.0, slow: 1.0}, {fast: 1.0, slow: 2.0}]
    runs = [
        {"cycle": c, "arm": arm, "samples_per_s": 100.0 * gain}
        for c, arms in enumerate(lucky)
        for arm, gain in {race.SCRIPT: 1.0, **arms}.items()
    ]
    assert max(race.rates({"runs": runs}).values()) == pytest.approx(2**0.5)
    assert race.fastest_rate({"runs": runs}) == pytest.approx(1.0)


def test_having_arrived_means_staying_there() -> None:
    one = searched("staged", point(10, {}), point(50, FAST), point(90, SLOW), point(130, FAST))
    assert race.arrivals(one, GAINS, 2.0)["by_model"] == {5: 130, 2: 130}
    left = searched("staged", point(10, FAST), point(90, SLOW))
    assert race.arrivals(left, GAINS, 2.0)["by_model"] == {5: None, 2: None}


@pytest.mark.parametrize("sampler", race.SAMPLERS)
def test_by_each_rule_both_are_judged_alike(sampler: str) -> None:
    one = searched(sampler, point(40, SLOW, FAST), point(200, FAST, FAST))
    assert race.arrived_s(one, GAINS, 2.0, 5, "by_reading", 600.0) == 40
    assert race.arrived_s(one, GAINS, 2.0, 5, "by_model", 600.0) == 200


def test_what_failed_once_has_no_rate_and_stops_nothing() -> None:
    made = state(searched("staged", point(10, SLOW), point(50, FAST)))
    failed = {"cycle": 1, "arm": race.key(SLOW), "failed": True}
    made["runs"] = [r for r in made["runs"] if (r["cycle"], r["arm"]) != (1, race.key(SLOW))] + [failed]
    gains = race.rates(made)
    assert race.key(SLOW) not in gains
    assert gains[race.key(FAST)] == pytest.approx(2.0)
    assert race.arrivals(made["searches"][0], gains, race.fastest_rate(made))["by_model"] == {5: 50, 2: 50}


def test_results_that_are_not_whole_are_left_out_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "RESULTS", tmp_path)
    made = state(searched("staged", point(50, FAST)))
    made["runs"] = [r for r in made["runs"] if r["arm"] != race.key(FAST)]
    (tmp_path / "made_up.race.json").write_text(json.dumps(made))
    assert "made_up" not in race.report()


def test_results_of_something_else_are_not_gone_on_with(tmp_path: Path) -> None:
    earlier = {"budget": "10m", "machine": {"cores": 2}}
    timer.check_identity(earlier, {"budget": "10m", "machine": {"cores": 2}}, tmp_path / "a.json")
    with pytest.raises(SystemExit, match="another machine"):
        timer.check_identity(earlier, {"budget": "10m", "machine": {"cores": 4}}, tmp_path / "a.json")


def test_who_arrives_after_the_budget_has_taken_the_whole_budget() -> None:
    late = searched("tpe", point(40, SLOW), point(640, FAST))
    assert race.arrived_s(late, GAINS, 2.0, 5, "by_model", 600.0) == 600.0


def test_whoever_never_arrives_has_taken_the_whole_budget() -> None:
    assert race.arrived_s(searched("tpe", point(40, SLOW)), GAINS, 2.0, 5, "by_model", 600.0) == 600.0


def test_searches_are_paired_by_workload_and_seed() -> None:
    ours = [searched("staged", point(50, FAST), seed=s) for s in (0, 1)]
    theirs = [searched("tpe", point(at, FAST), seed=s) for s, at in ((0, 100), (1, 200), (2, 999))]
    found = race.compared([state(*ours, *theirs)], 5, "by_model")
    assert found["tpe"]["n"] == 2
    assert found["tpe"]["value"] == pytest.approx((2 * 4) ** 0.5)


def test_disturbed_cycles_count_for_nobody() -> None:
    made = state(searched("staged", point(50, FAST)))
    for run in made["runs"]:
        if run["cycle"] == 0:
            run |= {"samples_per_s": 1.0, "foreign_cores": 1.0}
    assert race.rates(made) == pytest.approx(GAINS)


def test_over_the_planned_run_a_compile_is_paid_once() -> None:
    made = state(searched("staged", point(50, FAST)))
    # 20,000 samples take the script 200 s, the fast one 100 s and another 25 s for its compile.
    made |= {"planned_samples": 20_000, "compile_s": {race.key(FAST): 25.0}}
    assert race.rates(made) == pytest.approx(GAINS)
    assert race.rates(made, "planned") == pytest.approx({**GAINS, race.key(FAST): 200 / 125})
    unknown = {**made, "planned_samples": 0}
    assert race.rates(unknown, "planned") == pytest.approx(GAINS)


def test_every_configuration_that_was_ever_recommended_is_timed_once() -> None:
    made = state(
        searched("staged", point(10, {}), point(50, FAST)), searched("tpe", point(10, SLOW, FAST), seed=1)
    )
    assert race.recommendations(made) == {race.SCRIPT: {}, race.key(FAST): FAST, race.key(SLOW): SLOW}


def test_a_configuration_that_nobody_recommended_is_of_no_search(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no search has recommended"):
        race.whose(state(searched("staged", point(1, FAST))), {"threads": 7}, tmp_path)


def test_the_report_reports_who_arrived_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "RESULTS", tmp_path)
    made = state(searched("staged", point(50, FAST)), searched("tpe", point(10, SLOW), point(100, FAST)))
    (tmp_path / "made_up.race.json").write_text(json.dumps(made))
    text = race.report()
    assert "| staged | 0 | 50 s / 50 s | 50 s / 50 s | 1.00 | 1 | 0 |" in text
    for fast in race.MEASURES.values():
        assert f"## made_up, {fast}" in text
        assert f"- tpe over ours to 5 %, by what each would confirm; {fast}: 2.000, 1 pairs" in text
    assert (tmp_path / "race.md").read_text() == text


def test_names_of_configurations_do_not_hang_on_the_order_of_their_knobs() -> None:
    both = {"b": 1, "a": 2}
    assert race.key(both) == race.key(dict(sorted(both.items())))
    assert race.key(dict(Config())) == race.SCRIPT
