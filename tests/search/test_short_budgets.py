"""What a search does with budgets of one to ten minutes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from search_world import World, dimension, loss_trace, measurement, simulate, spec, tell, usual_space

from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.knob_families import families_of
from autotune.model.measurement import Contamination, Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import AFTER_WINDOW_S, Outcome, Proposal, Stage
from autotune.search import stages
from autotune.search.confirmation.racing import select_members
from autotune.search.costs import Costs
from autotune.search.feature_flags import DEFAULT
from autotune.search.forecast import forecast
from autotune.search.models.priors import Priors
from autotune.search.screening.initial_design import start_list
from autotune.search.screening.state import SearchState
from autotune.search.stages import Staged

FAMILIES = {
    "num_workers": "loader",
    "prefetch_factor": "loader",
    "precision": "precision",
    "compile": "compile",
    "batch_size": "batch",
    "channels_last": "layout",
    "threads": "threads",
    "fused_optimizer": "optimizer",
}


def space() -> SearchSpace:
    plain = usual_space(training=False)
    named = {k: replace(d, family=FAMILIES[k]) for k, d in plain.dimensions.items()}
    return replace(plain, dimensions=named)


WORLD = World(space=space(), speed={("precision", "bf16"): 1.8}, noise=0.02)
FLAT = World(space=space(), speed={("precision", "bf16"): 0.7, ("compile", "default"): 0.9}, input_s=0.0)


@pytest.mark.parametrize("seconds", [60.0, 120.0, 300.0])
@pytest.mark.parametrize("world", [WORLD, FLAT])
@pytest.mark.thorough
def test_every_budget_is_spent_and_a_third_of_it_on_candidates(seconds: float, world: World) -> None:
    study = simulate(Staged(), world, spec(seconds=seconds))
    longest_s = max(t.seconds for t in study.trials)
    assert seconds - 1.5 * longest_s <= study.elapsed_s <= seconds
    assert sum(t.seconds for t in study.trials if t.config) >= seconds / 3


def test_a_first_run_from_a_cold_disk_is_not_believed_of_later_ones() -> None:
    study = Study(spec=spec(seconds=120.0), facts=WORLD.facts(), space=space())
    for number, (config, startup_s) in enumerate([(Config(), 13.0), (Config({"threads": 1}), 3.0)]):
        stage = Stage.INITIAL if config else Stage.BASELINE
        fidelity = Costs.of(study).fidelity(stage, config, remaining_s=100.0, reserve_s=0.0)
        proposal = Proposal(stage=stage, config=config, fidelity=fidelity, reason="x", seed=number)
        study = tell(study, proposal, measurement(100.0, startup_s=startup_s), startup_s + 4.0)
    assert Costs.of(study).plain_s == pytest.approx(7.0)


def test_counting_steps_after_the_first_run_is_no_price_of_later_ones() -> None:
    study = Study(spec=spec(seconds=120.0), facts=WORLD.facts(), space=space())
    proposal = Staged().ask(study, 120.0)
    assert proposal is not None
    plain = tell(study, proposal, measurement(100.0), 7.0)
    counted = replace(measurement(100.0), extra={AFTER_WINDOW_S: 1.5})
    assert Costs.of(tell(study, proposal, counted, 8.5)) == replace(
        Costs.of(plain), study=tell(study, proposal, counted, 8.5)
    )


def test_after_a_first_run_that_took_half_of_the_budget_a_candidate_runs_all_the_same() -> None:
    study = Study(spec=spec(seconds=120.0, why=True), facts=WORLD.facts(), space=space())
    first = Staged().ask(study, 110.0)
    assert first is not None
    study = tell(study, first, measurement(100.0, startup_s=40.0), 55.0)
    second = Staged().ask(study, 60.0)
    assert second is not None
    assert second.stage is Stage.INITIAL
    assert second.config


def test_time_is_set_aside_for_pairs_only_while_there_is_something_to_confirm_and_pairs_fit() -> None:
    study = simulate(Staged(), FLAT, spec(seconds=120.0))
    costs, bf16 = Costs.of(study), Config({"precision": "bf16"})
    assert costs.reserve([], 100.0) == 0.0
    assert costs.fewest(bf16) < costs.reserve([bf16], 100.0) <= 100.0
    assert costs.reserve([bf16], 0.9 * costs.fewest(bf16)) == 0.0


@pytest.mark.thorough
def test_families_that_apply_are_covered_before_any_is_refined() -> None:
    study = simulate(Staged(), replace(FLAT, input_s=WORLD.input_s), spec(seconds=300.0))
    screened = [t for t in study.trials if t.stage in (Stage.INITIAL, Stage.REFINE)]
    first = [t for t in screened if t.stage is Stage.INITIAL]
    covered = frozenset[str]().union(*(families_of(study.space, t.config) for t in first))  # type: ignore[arg-type]
    assert {"precision", "loader", "threads", "layout", "batch", "compile"} <= covered


def with_workers(values: tuple[int, ...], *, cores: int, wait: float = 0.0) -> Study:
    """The baseline of a script with four loader workers and two threads was measured."""
    workers = dimension("num_workers", values, 4, ordinal=True, family="loader")
    given = SearchSpace(dimensions={"num_workers": workers})
    facts = World(space=given, speed={}, cores=cores).facts()
    assert facts.run is not None
    assert facts.run.loader is not None
    run = replace(facts.run, loader=replace(facts.run.loader, num_workers=4), threads=2)
    study = Study(spec=spec(seconds=300.0), facts=replace(facts, run=run), space=given)
    first = Staged().ask(study, 290.0)
    assert first is not None
    return tell(study, first, measurement(100.0, wait=wait), 6.0)


def expected_on_cpu(study: Study) -> Priors:
    assert study.space is not None
    found = Priors.of(study, study.space)
    assert found is not None
    return replace(found, device="cpu")


def test_fewer_workers_than_the_scripts_are_tried_down_to_none() -> None:
    study = with_workers((0, 1, 2, 4), cores=2)
    assert study.space is not None
    search = SearchState.of(study, study.space, 280.0, DEFAULT)
    assert search is not None
    assert {c.get("num_workers") for c, _ in start_list(search)} == {0, 2}
    proposal = Staged().ask(study, 280.0)
    assert proposal is not None
    assert proposal.config.get("num_workers") in (0, 2)


def test_workers_that_crowd_the_cores_are_not_expected_to_be_worth_what_they_load() -> None:
    crowded, roomy = (expected_on_cpu(with_workers((0, 4), cores=cores)) for cores in (2, 16))
    assert crowded.mean((0,)) > roomy.mean((0,))
    assert crowded.spreads()[0] > roomy.spreads()[0]


def test_more_workers_than_there_are_cores_for_are_expected_to_gain_nothing() -> None:
    found = expected_on_cpu(with_workers((0, 2, 4, 8), cores=2, wait=0.05))
    assert found.mean((8,)) <= 0.0 == found.mean((4,))


def test_a_search_whose_time_is_over_says_that_no_run_fits() -> None:
    study = with_workers((0, 2), cores=2)
    message = "Nothing new was tried any more, as no further run fits into the time left."
    assert Staged().ending(study, 2.0) == message
    assert Staged().ending(study, 200.0) != message


def pairs_of(*rates: tuple[Config, float, float]) -> Study:
    """A screened study; each config with its rate and the seconds that its compile took."""
    study = Study(spec=spec(seconds=200.0), facts=WORLD.facts(), space=space())
    for number, (config, rate, compile_s) in enumerate(rates):
        stage = Stage.INITIAL if config else Stage.BASELINE
        fidelity = Costs.of(study).fidelity(stage, config, remaining_s=200.0, reserve_s=0.0)
        proposal = Proposal(stage=stage, config=config, fidelity=fidelity, reason="x", seed=number)
        outcome: Outcome = measurement(
            rate, compile_s=compile_s, cold=compile_s > 0, loss=loss_trace(seed=0, jitter_seed=number)
        )
        study = tell(study, proposal, outcome, 6.0 + compile_s)
    return study


BF16 = Config({"precision": "bf16"})
COMPILED = Config({"precision": "bf16", "compile": "default"})
RATES = ((Config(), 100.0, 0.0), (Config(), 101.0, 0.0), (BF16, 215.0, 0.0), (COMPILED, 219.0, 60.0))


def members(study: Study, remaining_s: float) -> tuple[Config, ...]:
    return select_members(study, [], study, Costs.of(study), remaining_s, DEFAULT)


def test_a_finalist_whose_pairs_do_not_fit_makes_way_for_one_whose_pairs_do() -> None:
    study = pairs_of(*RATES)
    costs = Costs.of(study)
    assert costs.cycle([COMPILED]) > 1.25 * costs.cycle([BF16])
    assert members(study, 0.9 * costs.fewest(COMPILED))[:1] == (BF16,)


def test_where_few_pairs_fit_a_cheaper_one_that_reads_alike_is_confirmed_first() -> None:
    study = pairs_of(*RATES)
    costs = Costs.of(study)
    assert members(study, 1.2 * costs.fewest(COMPILED))[:1] == (BF16,)
    assert members(study, 10.0 * costs.cycle([COMPILED]))[:1] == (COMPILED,)


def test_windows_of_slow_steps_wait_for_fewer_of_them_where_a_run_only_screens() -> None:
    study = Study(spec=spec(seconds=120.0), facts=WORLD.facts(), space=space())
    fidelity = Costs.of(study).fidelity(Stage.BASELINE, Config(), remaining_s=110.0, reserve_s=0.0)
    proposal = Proposal(stage=Stage.BASELINE, config=Config(), fidelity=fidelity, reason="x")
    slow = replace(measurement(32.0), step_time_s=replace(measurement(32.0).step_time_s, value=1.0))
    costs = Costs.of(tell(study, proposal, slow, 15.0))
    screening = costs.fidelity(Stage.INITIAL, BF16, remaining_s=90.0, reserve_s=0.0)
    pairs = costs.fidelity(Stage.CONFIRM, BF16, remaining_s=90.0, reserve_s=0.0)
    assert screening.min_steps == 4
    assert pairs.min_steps == 10
    assert screening.max_window_s < pairs.max_window_s


def test_before_anything_was_screened_a_run_costs_what_its_shorter_window_leaves() -> None:
    study = Study(spec=spec(seconds=120.0), facts=WORLD.facts(), space=space())
    fidelity = Costs.of(study).fidelity(Stage.BASELINE, Config(), remaining_s=110.0, reserve_s=0.0)
    proposal = Proposal(stage=Stage.BASELINE, config=Config(), fidelity=fidelity, reason="x")
    long = replace(measurement(32.0), window_s=55.0)
    long = replace(long, step_time_s=replace(long.step_time_s, value=5.5))
    costs = Costs.of(tell(study, proposal, long, 65.0))
    window_s = costs.fidelity(Stage.INITIAL, BF16, remaining_s=50.0, reserve_s=0.0).max_window_s
    assert costs.plain_s == 65.0
    assert costs.screening(BF16) == pytest.approx(65.0 - 55.0 + window_s)


def test_the_forecast_says_what_the_budget_allows_and_what_a_confirmed_answer_takes() -> None:
    def after(seconds: float, run_s: float) -> str:
        study = Study(spec=spec(seconds=seconds), facts=WORLD.facts(), space=space())
        first = Staged().ask(study, seconds)
        assert first is not None
        study = tell(study, first, measurement(100.0), run_s)
        return forecast(study, seconds - run_s)

    assert after(300.0, 10.0).startswith("One run takes about 10 s. 5m allows about ")
    assert after(300.0, 10.0).endswith(" candidates and the confirmation of one.")
    rough = re.search(
        r"2m allows about 3 candidates and a rough answer; --budget (\d+)m allows", after(120.0, 30.0)
    )
    assert rough is not None
    assert after(60.0 * int(rough[1]), 30.0).endswith("the confirmation of one.")
    assert "90s allows no candidate; --budget" in after(90.0, 50.0)
    assert forecast(Study(spec=spec(), space=space()), 100.0) == ""


def window_s(seconds: float, stage: Stage) -> tuple[float, float]:
    study = Study(spec=spec(seconds=seconds), facts=WORLD.facts(), space=space())
    fidelity = Costs.of(study).fidelity(stage, BF16, remaining_s=seconds, reserve_s=0.0)
    return fidelity.min_window_s, fidelity.max_window_s


@pytest.mark.parametrize("stage", [Stage.BASELINE, Stage.CONFIRM])
def test_windows_grow_with_the_square_root_of_the_budget(stage: Stage) -> None:
    assert window_s(3600.0, stage) == pytest.approx([2.0 * x for x in window_s(900.0, stage)])
    assert window_s(1e6, stage) == window_s(2e6, stage)


@pytest.mark.parametrize("seconds", [60.0, 300.0, 3600.0])
def test_pairs_have_the_longest_windows_and_none_is_shorter_than_a_queue_needs(seconds: float) -> None:
    screening, base, pairs = (window_s(seconds, s) for s in (Stage.INITIAL, Stage.BASELINE, Stage.CONFIRM))
    assert 1.5 <= screening[1] <= base[1] <= pairs[1]
    assert 0.75 <= screening[0] < screening[1]
    assert screening[0] <= base[0] <= pairs[0]


def test_families_that_promise_nothing_come_after_what_is_expected_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = Study(spec=spec(seconds=300.0), facts=WORLD.facts(), space=space())
    first = Staged().ask(study, 290.0)
    assert first is not None
    study = tell(study, first, measurement(100.0), 6.0)
    expected = Staged().ask(study, 284.0)

    def nothing(_: SearchState) -> None:
        return None

    monkeypatch.setattr(stages, "next_start", nothing)
    late = Staged().ask(study, 284.0)
    assert expected is not None
    assert late is not None
    assert "was measured yet" not in expected.reason
    assert "was measured yet" in late.reason
    assert (expected.stage, late.stage) == (Stage.INITIAL, Stage.INITIAL)


def beside_others(study: Study, *numbers: int) -> Study:
    """The same, with these trials measured while other processes took the CPU."""
    mark = Contamination(foreign_cpu_frac=1.0, flags=("cpu_contended",))
    trials = [
        replace(t, outcome=replace(t.outcome, contamination=mark))
        if t.number in numbers and isinstance(t.outcome, Measurement)
        else t
        for t in study.trials
    ]
    return replace(study, trials=tuple(trials))


def test_what_was_measured_beside_others_alone_runs_again_once_they_have_ended_the_baseline_first() -> None:
    study = pairs_of((Config(), 8.5, 0.0), (BF16, 100.0, 0.0), (Config({"threads": 1}), 310.0, 0.0))
    again = Staged().ask(beside_others(study, 0, 1), 150.0)
    assert again is not None
    assert (again.stage, again.config) == (Stage.BASELINE, Config())
    assert "other processes disturbed every run of it" in again.reason
    assert again.fidelity.dominated_below == 0.0, "the script's own run is not cut off for being slow"
    only_bf16 = Staged().ask(beside_others(study, 1), 150.0)
    assert only_bf16 is not None
    assert (only_bf16.stage, only_bf16.config) == (Stage.INITIAL, BF16)


def test_while_the_others_still_run_nothing_is_repeated() -> None:
    study = pairs_of((Config(), 100.0, 0.0), (BF16, 180.0, 0.0))
    proposal = Staged().ask(beside_others(study, 0, 1), 150.0)
    assert proposal is not None
    assert proposal.config not in (Config(), BF16)


def test_a_disturbed_run_is_no_price_of_later_ones() -> None:
    study = pairs_of((Config(), 100.0, 0.0), (Config(), 100.0, 0.0))
    slow = replace(study.trials[0], seconds=60.0)
    crowded = beside_others(replace(study, trials=(slow, study.trials[1])), 0)
    assert Costs.of(crowded).plain_s == pytest.approx(6.0)


@pytest.mark.thorough
def test_a_family_whose_ceiling_is_too_low_is_never_tried_by_the_planner() -> None:
    study = simulate(Staged(), FLAT, spec(seconds=300.0))
    assert not any("num_workers" in t.config or "prefetch_factor" in t.config for t in study.trials)
    every = Staged(parts=DEFAULT.put("ceilings", present=False))
    assert any("num_workers" in t.config for t in simulate(every, FLAT, spec(seconds=300.0)).trials)


@pytest.mark.thorough
def test_in_a_short_search_what_changes_the_training_waits_for_what_keeps_it() -> None:
    world = World(
        space=usual_space(), speed={("precision", "bf16"): 1.8, ("batch_size", 64): 1.2}, noise=0.02
    )
    share = {}
    for seconds in (240.0, 1800.0):
        study = simulate(Staged(), world, spec(seconds=seconds))
        reported = study.finished(Stage.INITIAL, Stage.REFINE)
        wild = [t for t in reported if world.space.effect(t.config) is Effect.TRAINING]
        share[seconds] = sum(t.seconds for t in wild) / sum(t.seconds for t in reported)
    assert share[240.0] < share[1800.0]
