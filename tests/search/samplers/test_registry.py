"""Samplers by name, those without a library, and the one that draws in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import measurement, spec, tell, usual_space

from autotune.driver.spec import one_of
from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.space import Dimension
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.search.samplers import optuna_sampler as sampler_module
from autotune.search.samplers.optuna_sampler import OptunaSampler, Question
from autotune.search.samplers.plain_samplers import BruteForce, CoordinateDescent
from autotune.search.samplers.registry import ABOUT, SAMPLERS, strategy_for

SPACE = usual_space(training=False)
SMALL = replace(
    SPACE, dimensions={k: SPACE.dimensions[k] for k in ("threads", "precision")}, rules=(), starts=()
)
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
QUESTION = Question(
    kind="tpe",
    seed=1,
    knobs=(("a", 3, True), ("b", 2, False)),
    observed=(({"a": 0, "b": 1}, (1.0,), 0.0),),
    worst=(0.0,),
)


def study(*reported: tuple[Config, float], space: object = SMALL) -> Study:
    """A study that has measured these rates; 0 is a crash."""
    built = Study(spec=spec(), space=space)  # type: ignore[arg-type]
    for config, rate in reported:
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        crash = Failure(kind=FailureKind.CRASH_EXIT, message="broken")
        built = tell(built, proposal, measurement(rate) if rate else crash, 7.0)
    return built


def test_every_name_is_explained_and_makes_a_search() -> None:
    assert set(SAMPLERS) == set(ABOUT) == {"staged", "tpe", "nsga2", "random", "brute", "coordinate"}
    for name in SAMPLERS:
        assert strategy_for(name).ask(Study(spec=spec()), 100.0) is not None


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError) as raised:
        strategy_for("cordinate")
    assert raised.value.hint == 'Did you mean "coordinate"?'
    with pytest.raises(UsageError) as raised:
        one_of("--sampler", "nsga", SAMPLERS)
    assert raised.value.hint == 'Did you mean "nsga2"?'


def test_brute_force_asks_for_everything_once_in_the_order_of_the_space() -> None:
    known, proposal = study((Config(), 100.0)), []
    while (config := BruteForce().propose(known, SMALL, 0)) is not None:
        proposal.append(config)
        known = study(*((c, 100.0) for c in [Config(), *proposal]))
    assert [Config(), *proposal] == list(SMALL.enumerate())


def test_what_may_not_be_run_is_not_proposed() -> None:
    known = study((Config(), 100.0))

    def may(config: Config) -> bool:
        return "threads" not in config

    for sampler in (BruteForce(), CoordinateDescent(), OptunaSampler("tpe"), OptunaSampler("random")):
        assert sampler.propose(known, SMALL, 0, may) == Config({"precision": "bf16"})
        assert sampler.propose(known, SMALL, 0, lambda c: False) is None


def test_coordinate_descent_climbs_knob_by_knob_and_ends_on_top() -> None:
    rates = {
        config: 100.0 + 10 * (config.get("threads") == 4) + 5 * (config.get("precision") == "bf16")
        for config in SMALL.enumerate()
    }
    reported: dict[Config, float] = {Config(): 100.0}
    while (config := CoordinateDescent().propose(study(*reported.items()), SMALL, 0)) is not None:
        assert config not in reported
        reported[config] = rates[config]
    assert max(reported, key=lambda c: reported[c]) == Config({"threads": 4, "precision": "bf16"})
    assert len(reported) < len(rates) + 1


def test_coordinate_descent_goes_past_what_failed() -> None:
    reported: dict[Config, float] = {Config(): 100.0}
    while (config := CoordinateDescent().propose(study(*reported.items()), SMALL, 0)) is not None:
        reported[config] = 0.0
    assert set(reported) == {Config(), *(c for c in SMALL.enumerate() if len(c) == 1)}


def test_the_nearest_new_config_takes_the_place_of_draws_that_were_requested_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = list(SMALL.enumerate())
    last = Config({"threads": 1, "precision": "bf16"})
    known = study(*((c, 100.0) for c in everything if c != last))

    def always_baseline(question: Question):
        while True:
            yield {knob: 0 for knob, _, _ in question.knobs}

    monkeypatch.setattr(sampler_module, "draws", always_baseline)
    assert OptunaSampler().propose(known, SMALL, 0) == last


def test_what_takes_the_place_of_draws_of_no_use_is_nearest_to_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = study((Config(), 100.0), (Config({"threads": 4, "precision": "bf16"}), 110.0))

    def first_the_fast_one_then_the_baseline(question: Question):
        yield {"threads": 2, "precision": 1}
        while True:
            yield {"threads": 1, "precision": 0}

    monkeypatch.setattr(sampler_module, "draws", first_the_fast_one_then_the_baseline)
    found = OptunaSampler().propose(known, SMALL, 0, lambda c: len(c) == 1)
    assert found == Config({"precision": "bf16"})


def test_a_large_space_gets_more_draws_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    known, drawn = study((Config(), 100.0), space=SPACE), []

    def always_baseline(question: Question):
        while True:
            drawn.append(question.kind)
            yield {d.knob: _own(d) for d in SPACE.free()}

    monkeypatch.setattr(sampler_module, "draws", always_baseline)
    assert OptunaSampler("tpe").propose(known, SPACE, 0) is None
    assert drawn == ["tpe"] * 32


def _own(dimension: Dimension) -> int:
    assert dimension.own is not None
    return dimension.values.index(dimension.own)


def _reported(count: int, *, pairs: bool = False) -> Question:
    """Told so often, failures among it, that every sampler goes by it; more often than there are configs."""
    entries = tuple(
        ({"a": k % 3, "b": k % 2}, (float(k), 1.0)[: 1 + pairs], float(k % 7 == 0)) for k in range(count)
    )
    worst = (-1e9, 1e15)[: 1 + pairs]
    return replace(QUESTION, kind="nsga2" if pairs else "tpe", observed=entries, worst=worst)


@pytest.mark.parametrize("count", [0, 5, 30])
def test_every_draw_of_a_question_has_the_constraint_that_what_was_reported_has(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    mirror_of = sampler_module._mirror
    monkeypatch.setattr(sampler_module, "_mirror", lambda q: made.append(mirror_of(q)) or made[0])
    drawn = sampler_module.draws(_reported(count))
    for _ in range(3):
        next(drawn)
    (mirror,) = made
    assert [list(t.constraints) for t in mirror.trials[:-1]] == [["runs"]] * (count + 2)
    assert all(t.constraints["runs"] == 0.0 for t in mirror.trials[count:-1])


@pytest.mark.parametrize(("count", "generation"), [(0, 0), (9, 0), (10, 1), (30, 3)])
def test_the_evolutionary_sampler_goes_on_from_the_generations_before(count: int, generation: int) -> None:
    question = _reported(count, pairs=True)
    mirror = sampler_module._mirror(question)
    mirror.ask(sampler_module._distributions(question))
    key = mirror.sampler._get_generation_key()
    assert [t.system_attrs[key] for t in mirror.trials] == [*(k // 10 for k in range(count)), generation]
