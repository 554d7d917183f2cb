"""Which configs a running process is switched to, and what the search makes of what it saw."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import recorded_world
from search_world import measurement, tell, usual_space
from search_world import spec as search_spec

from autotune.answer.pick import answer
from autotune.compare.agreement import agreements
from autotune.compare.comparison import compare
from autotune.launch.fake import COMPUTE_BOUND
from autotune.model.config import Config
from autotune.model.live import Observation, Visited
from autotune.model.measurement import Estimate
from autotune.model.objective import ENERGY
from autotune.model.study import SpaceRequest, Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage, Trial, TrialState
from autotune.report.view.report_data import report_data
from autotune.report.view.study_view import View
from autotune.search.costs import Costs
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.samplers.registry import strategy_for
from autotune.search.visits import is_live, visit
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.testing.replay import RecordedPlanner, replay
from autotune.testing.table import Table

KNOBS = {"threads": (8, 4, 2), "precision": ("fp32", "bf16"), "channels_last": (False, True)}
CONFIGS = tuple(
    Config({k: v for k, v in zip(KNOBS, values, strict=True) if v not in (8, "fp32", False)})
    for values in itertools.product(*KNOBS.values())
)
WORLD = replace(
    COMPUTE_BOUND,
    gains={
        "threads": {4: 0.8, 2: 1.5},
        "precision": {"bf16": 0.6},
        "channels_last": {True: 0.95},
    },
)
FOUR, TWO, HALF = Config({"threads": 4}), Config({"threads": 2}), Config({"precision": "bf16"})


def table(*rows: recorded_world.TableRow) -> Table:
    made = recorded_world.table(*rows, configs=CONFIGS, world=WORLD)
    request = SpaceRequest(name="grid-live", knobs=KNOBS)
    return replace(made, header=replace(made.header, request=request))


@functools.cache
def searched(*, live: bool = True, budget_s: float = 300.0) -> Study:
    return replay(table(), budget_s=budget_s, live=live).study


def observations(study: Study) -> dict[Config, Observation]:
    return {o.config: o for t in study.visits if t.visited is not None for o in t.visited.observations}


def test_the_second_process_of_the_script_goes_on_with_single_changes() -> None:
    study = searched()
    assert [t.number for t in study.trials if t.visit is not None] == [1]
    planned = study.trials[1].visit
    assert planned is not None
    # What changes no arithmetic comes first.
    assert planned.configs == (FOUR, TWO, HALF)
    found = observations(study)
    assert set(found) == {FOUR, TWO, HALF}
    base = WORLD.throughput(Config())
    for config, observation in found.items():
        assert observation.ratio is not None
        assert observation.ratio.value == pytest.approx(WORLD.throughput(config) / base, rel=0.06)


def test_what_a_running_process_has_shown_is_not_asked_again_by_itself() -> None:
    starts = [t.config for t in searched().trials if t.stage is Stage.START]
    assert TWO not in starts, "it is slower, and that is known"
    # Together first: that is what the segments are for.
    assert starts[0] == Config({**FOUR, **HALF})
    plain = [t.config for t in searched(live=False).trials if t.stage in (Stage.START, Stage.REFINE)]
    tried = {item for config in plain for item in config.items()}
    assert {*FOUR.items(), *TWO.items(), *HALF.items()} <= tried


def test_no_figure_of_any_trial_rests_on_a_segment() -> None:
    live, plain = searched(), searched(live=False)
    # The process that goes on is the same up to there.
    goes_on, ends = ([t for t in s.trials if t.stage is Stage.BASELINE][1] for s in (live, plain))
    assert goes_on.outcome == ends.outcome
    assert goes_on.own_s == pytest.approx(ends.seconds)
    assert goes_on.seconds > ends.seconds
    best = answer(live).best.config
    confirmed = [t for t in live.trials if t.stage is Stage.CONFIRM and t.config == best]
    assert len(confirmed) >= 3
    assert all(t.visited is None for t in confirmed)
    assert 3 <= len(next(c for c in compare(live) if c.config == best).logs) <= len(confirmed)
    fastest = max(CONFIGS, key=WORLD.throughput)
    assert WORLD.throughput(best) >= 0.94 * WORLD.throughput(fastest)


def test_without_the_option_nothing_is_visited() -> None:
    assert searched(live=False).visits == []
    assert not any(t.visit for t in searched(live=False).trials)


def test_a_failing_segment_ends_the_visit_and_the_rest_is_asked_afresh() -> None:
    rows = [
        recorded_world.failed(config, repeat, order, "crash_exit")
        if config.get("threads") == 4
        else recorded_world.row(config, repeat, order, world=WORLD)
        for repeat in range(3)
        for order, config in enumerate(CONFIGS)
    ]
    study = replay(table(*rows), budget_s=300.0, live=True).study
    found = observations(study)
    assert {c: o.failure for c, o in found.items()} == {FOUR: "crash_exit"}
    assert study.trials[1].measurement is not None
    asked = {t.config for t in study.trials if t.stage in (Stage.START, Stage.REFINE)}
    assert {TWO, HALF} & asked
    assert answer(study).is_better


def test_a_visit_that_is_read_back_is_the_same(tmp_path: Path) -> None:
    ended = replay(table(), budget_s=120.0, live=True, folder=tmp_path).study
    journal = Journal.read(tmp_path / "journal.db")
    folded = fold(journal.entries(), build=RecordedPlanner(table()).space)
    journal.close()
    assert folded.spec.live
    assert [(t.visit, t.visited) for t in folded.trials] == [(t.visit, t.visited) for t in ended.trials]


def test_the_report_says_what_segments_have_shown_and_that_it_is_no_claim() -> None:
    study = searched()
    data = report_data(View.of(study, answer(study)))["live"]
    assert "not confirmed" in data["how"]
    assert [s["config"] for s in data["segments"]] == [dict(c) for c in (FOUR, TWO, HALF)]
    assert {s["source"] for s in data["segments"]} == {"segment"}
    assert (
        {k["knob"] for k in data["knobs"]} == {a.knob for a in agreements(study)} == {"threads", "precision"}
    )
    assert "live" not in report_data(View.of(searched(live=False), answer(searched(live=False))))


# The model

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
SPACE = usual_space()


def seen(config: Config, ratio: float) -> Observation:
    estimate = Estimate(value=ratio, low=0.99 * ratio, high=1.01 * ratio, n=6, unit="ratio")
    return Observation(config=config, ratio=estimate, seconds=2.0)


def told(*runs: tuple[Config, float], visited: Visited | None = None) -> Study:
    """The unchanged script at 100 samples/s, with a visit; then these."""
    built = Study(spec=search_spec(live=True), space=SPACE)
    for config, rate in ((Config(), 100.0), *runs):
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        built = tell(built, proposal, measurement(rate), 7.0)
    first: Trial = replace(built.trials[0], visited=visited)
    return built.with_trial(first)


def model(study: Study) -> ThroughputModel:
    found = ThroughputModel.of(study, SPACE)
    assert found is not None
    return found


def test_segments_teach_the_model_and_are_doubted_more_than_processes() -> None:
    config = Config({"threads": 4})
    live = model(told(visited=Visited(observations=(seen(config, 1.3),), seconds=9.0)))
    fresh = model(told((config, 130.0)))
    assert live.live == {config: pytest.approx(math.log(1.3))}
    assert live.seen == {Config(): 0.0}
    assert live.known == {Config(): 0.0, config: pytest.approx(math.log(1.3))}
    assert 0.1 < live.predict(config)[0] < fresh.predict(config)[0] < math.log(1.3)
    assert live.predict(config)[1] > 1.2 * fresh.predict(config)[1]
    assert fresh.live == {}


def test_a_process_of_its_own_takes_the_place_of_a_segment() -> None:
    config = Config({"threads": 4})
    both = model(told((config, 128.0), visited=Visited(observations=(seen(config, 1.3),), seconds=9.0)))
    assert both.live == {}
    assert both.seen[config] == pytest.approx(math.log(1.28))


def test_what_fails_in_a_process_of_its_own_is_nothing_to_be_faster_than() -> None:
    config = Config({"threads": 4})
    study = told(visited=Visited(observations=(seen(config, 1.3),), seconds=9.0))
    proposal = Proposal(stage=Stage.START, config=config, fidelity=FIDELITY, reason="x")
    failed = tell(study, proposal, Failure(kind=FailureKind.CRASH_EXIT, message="crash"), 3.0)
    assert model(study).live
    assert model(failed).live == {}


def test_a_knob_that_disagrees_teaches_nothing_more() -> None:
    one, four = Config({"threads": 1}), Config({"threads": 4})
    visited = Visited(observations=(seen(four, 1.5), seen(one, 1.4)), seconds=9.0)
    assert set(model(told(visited=visited)).live) == {one, four}
    assert model(told((four, 101.0), visited=visited)).live == {}


# What is visited


def test_only_what_a_step_can_switch_is_live() -> None:
    study = searched()
    for config in (FOUR, HALF, Config({**FOUR, **HALF})):
        assert is_live(study, config)
    for config in (Config(), Config({"channels_last": True}), Config({**FOUR, "channels_last": True})):
        assert not is_live(study, config)
    assert is_live(study, Config({"channels_last": True, "threads": 4}), Config({"channels_last": True}))
    assert not is_live(study, Config(), FOUR), "there is no switch to the script's own value"
    assert not is_live(
        study, Config({"compile_mode": "default", "threads": 4}), Config({"compile_mode": "default"})
    )


def test_compiled_code_is_not_switched() -> None:
    study = searched()
    assert study.facts is not None
    assert study.facts.run is not None
    compiled = replace(study, facts=replace(study.facts, run=replace(study.facts.run, own_compile=True)))
    assert not is_live(compiled, FOUR)


def test_a_visit_is_planned_within_its_share_and_only_where_it_saves_something() -> None:
    study = searched()
    first = replace(study, trials=study.trials[:1])
    costs = Costs.of(first)
    wanted = [FOUR, HALF, TWO]
    planned = visit(first, wanted, costs, 1000.0)
    assert planned is not None
    assert planned.configs == (FOUR, TWO, HALF)
    assert visit(first, wanted, costs, 10.0) is None
    some = visit(first, wanted, costs, 50.0)
    assert some is not None
    assert some.configs == planned.configs[: len(some.configs)] != planned.configs
    assert visit(first, wanted, replace(costs, plain_s=2.0), 1000.0) is None, (
        "a process costs next to nothing"
    )
    assert visit(first, [], costs, 1000.0) is None
    for other in ({"live": False}, {"objective": ENERGY}):
        assert visit(replace(first, spec=replace(first.spec, **other)), wanted, costs, 1000.0) is None


def test_what_a_process_is_about_to_be_switched_to_waits_for_it() -> None:
    """Several processes at once: the others take what it does not."""
    study = searched()
    first, second = study.trials[:2]
    open_one = replace(second, state=TrialState.RUNNING, outcome=None, visited=None)
    asked = strategy_for("staged").ask(replace(study, trials=(first, open_one), stopped=""), 250.0)
    assert asked is not None
    assert asked.stage is Stage.START
    assert asked.config.get("channels_last") is True
    assert asked.config not in (FOUR, TWO, HALF)
