"""Samplers by name, those without a library, and the one that draws in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from search_world import measurement, spec, tell, usual_space

from autotune.driver.spec import one_of
from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.space import Dimension
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.search.samplers import draws_process
from autotune.search.samplers import optuna_sampler as sampler_module
from autotune.search.samplers.draws_process import DrawsProcess, serve
from autotune.search.samplers.optuna_sampler import OptunaSampler, Question
from autotune.search.samplers.plain_samplers import BruteForce, CoordinateDescent
from autotune.search.samplers.registry import ABOUT, SAMPLERS, strategy_for

SPACE = usual_space(training=False)
SMALL = replace(
    SPACE, dimensions={k: SPACE.dimensions[k] for k in ("threads", "precision")}, rules=(), starts=()
)
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
QUESTION = Question(
    kind="gp",
    seed=1,
    knobs=(("a", 3, True), ("b", 2, False)),
    told=(({"a": 0, "b": 1}, (1.0,), 0.0),),
    worst=(0.0,),
)


def study(*told: tuple[Config, float], space: object = SMALL) -> Study:
    """A study that has measured these rates; 0 is a crash."""
    built = Study(spec=spec(), space=space)  # type: ignore[arg-type]
    for config, rate in told:
        stage = Stage.REFINE if config else Stage.BASELINE
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        crash = Failure(kind=FailureKind.CRASH_EXIT, message="broken")
        built = tell(built, proposal, measurement(rate) if rate else crash, 7.0)
    return built


def test_every_name_is_explained_and_makes_a_search() -> None:
    assert set(SAMPLERS) == set(ABOUT) == {"staged", "tpe", "gp", "nsga2", "random", "brute", "coordinate"}
    for name in SAMPLERS:
        assert strategy_for(name).ask(Study(spec=spec()), 100.0) is not None


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError) as told:
        strategy_for("cordinate")
    assert told.value.hint == 'Did you mean "coordinate"?'
    with pytest.raises(UsageError) as told:
        one_of("--sampler", "nsga", SAMPLERS)
    assert told.value.hint == 'Did you mean "nsga2"?'


def test_brute_force_asks_for_everything_once_in_the_order_of_the_space() -> None:
    known, asked = study((Config(), 100.0)), []
    while (config := BruteForce().propose(known, SMALL, 0)) is not None:
        asked.append(config)
        known = study(*((c, 100.0) for c in [Config(), *asked]))
    assert [Config(), *asked] == list(SMALL.enumerate())


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
    told: dict[Config, float] = {Config(): 100.0}
    while (config := CoordinateDescent().propose(study(*told.items()), SMALL, 0)) is not None:
        assert config not in told
        told[config] = rates[config]
    assert max(told, key=lambda c: told[c]) == Config({"threads": 4, "precision": "bf16"})
    assert len(told) < len(rates) + 1


def test_coordinate_descent_goes_past_what_failed() -> None:
    told: dict[Config, float] = {Config(): 100.0}
    while (config := CoordinateDescent().propose(study(*told.items()), SMALL, 0)) is not None:
        told[config] = 0.0
    assert set(told) == {Config(), *(c for c in SMALL.enumerate() if len(c) == 1)}


def test_the_nearest_new_config_takes_the_place_of_draws_that_were_asked_before() -> None:
    everything = list(SMALL.enumerate())
    last = Config({"threads": 1, "precision": "bf16"})
    known = study(*((c, 100.0) for c in everything if c != last))

    def always_baseline(question: Question):
        while True:
            yield {knob: 0 for knob, _, _ in question.knobs}

    assert OptunaSampler("gp", draws=always_baseline).propose(known, SMALL, 0) == last


def test_what_takes_the_place_of_draws_of_no_use_is_nearest_to_the_first_of_them() -> None:
    known = study((Config(), 100.0), (Config({"threads": 4, "precision": "bf16"}), 110.0))

    def first_the_fast_one_then_the_baseline(question: Question):
        yield {"threads": 2, "precision": 1}
        while True:
            yield {"threads": 1, "precision": 0}

    sampler = OptunaSampler("gp", draws=first_the_fast_one_then_the_baseline)
    found = sampler.propose(known, SMALL, 0, lambda c: len(c) == 1)
    assert found == Config({"precision": "bf16"})


def test_a_large_space_gets_few_slow_draws_and_then_random_ones() -> None:
    known, slow = study((Config(), 100.0), space=SPACE), []

    def always_baseline(question: Question):
        while True:
            slow.append(question.kind)
            yield {d.knob: _own(d) for d in SPACE.free()}

    found = OptunaSampler("gp", draws=always_baseline).propose(known, SPACE, 0)
    assert found is not None
    assert slow == ["gp", "gp"]
    assert OptunaSampler("tpe", draws=always_baseline).propose(known, SPACE, 0) is None
    assert slow[2:] == ["tpe"] * 32


def _own(dimension: Dimension) -> int:
    assert dimension.own is not None
    return dimension.values.index(dimension.own)


def _told(count: int, *, pairs: bool = False) -> Question:
    """Told so often, failures among it, that every sampler goes by it; more often than there are configs."""
    entries = tuple(
        ({"a": k % 3, "b": k % 2}, (float(k), 1.0)[: 1 + pairs], float(k % 7 == 0)) for k in range(count)
    )
    worst = (-1e9, 1e15)[: 1 + pairs]
    return replace(QUESTION, kind="nsga2" if pairs else "tpe", told=entries, worst=worst)


@pytest.mark.parametrize("count", [0, 5, 30])
def test_every_draw_of_a_question_has_the_constraint_that_what_was_told_has(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    mirror_of = sampler_module._mirror
    monkeypatch.setattr(sampler_module, "_mirror", lambda q: made.append(mirror_of(q)) or made[0])
    drawn = sampler_module.draws(_told(count))
    for _ in range(3):
        next(drawn)
    (mirror,) = made
    assert [list(t.constraints) for t in mirror.trials[:-1]] == [["runs"]] * (count + 2)
    assert all(t.constraints["runs"] == 0.0 for t in mirror.trials[count:-1])


@pytest.mark.parametrize(("count", "generation"), [(0, 0), (9, 0), (10, 1), (30, 3)])
def test_the_evolutionary_sampler_goes_on_from_the_generations_before(count: int, generation: int) -> None:
    question = _told(count, pairs=True)
    mirror = sampler_module._mirror(question)
    mirror.ask(sampler_module._distributions(question))
    key = mirror.sampler._get_generation_key()
    assert [t.system_attrs[key] for t in mirror.trials] == [*(k // 10 for k in range(count)), generation]


@pytest.mark.torch
def test_the_gaussian_process_is_asked_again_after_a_draw_of_no_use() -> None:
    drawn = sampler_module.draws(replace(_told(8), kind="gp", worst=(0.0,)))
    assert all(set(next(drawn)) == {"a", "b"} for _ in range(3))


def test_the_childs_part_answers_line_by_line() -> None:
    plain = replace(QUESTION, kind="random")
    lines = [json.dumps({"question": _as_json(plain)}), json.dumps({"again": True})]
    answers = [json.loads(answer)["params"] for answer in serve(iter(lines))]
    assert len(answers) == 2
    assert all(set(a) == {"a", "b"} and a["a"] in range(3) and a["b"] in range(2) for a in answers)


def _as_json(question: Question) -> dict[str, object]:
    return {name: getattr(question, name) for name in ("kind", "seed", "knobs", "told", "worst")}


def _child(folder: Path, body: str) -> tuple[str, ...]:
    script = folder / "child.py"
    script.write_text("import json, sys\nfor line in sys.stdin:\n" + body)
    return sys.executable, "-S", str(script)


def test_draws_come_from_a_child_that_is_asked_again_and_ended(tmp_path: Path) -> None:
    body = "    print(json.dumps({'params': {'a': 2, 'b': int('again' in line)}}), flush=True)\n"
    process = DrawsProcess(_child(tmp_path, body))
    drawn = process(QUESTION)
    assert [next(drawn), next(drawn)] == [{"a": 2, "b": 0}, {"a": 2, "b": 1}]
    child = process._child
    assert child is not None
    process.close()
    assert child.poll() is not None


@pytest.mark.parametrize("body", ["    sys.exit(1)\n", "    print('nonsense', flush=True)\n", "    pass\n"])
def test_a_child_that_does_not_answer_leaves_random_draws_and_a_word(
    tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    process = DrawsProcess(_child(tmp_path, body), answer_s=10.0 if "pass" not in body else 0.3)
    with caplog.at_level("WARNING", logger=draws_process.__name__):
        drawn = process(QUESTION)
        assert set(next(drawn)) == {"a", "b"}
        assert set(next(process(QUESTION))) == {"a", "b"}
    assert len(caplog.records) == 1
    assert "random" in caplog.text


def test_a_child_that_worked_and_dies_is_started_again_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It dies whenever it is asked for another draw; the question itself it answers."""
    body = (
        "    if 'again' in line:\n        sys.exit(1)\n"
        "    print(json.dumps({'params': {'a': 2, 'b': 1}}), flush=True)\n"
    )
    process = DrawsProcess(_child(tmp_path, body))
    with caplog.at_level("WARNING", logger=draws_process.__name__):
        drawn = process(QUESTION)
        assert [next(drawn), next(drawn)] == [{"a": 2, "b": 1}] * 2
        assert not caplog.records
        assert set(next(drawn)) == {"a", "b"}
    assert "random" in caplog.text
    assert process._child is None


@pytest.mark.torch
def test_the_gaussian_process_draws_in_its_own_process() -> None:
    known = study((Config(), 100.0), *((c, 90.0) for c in list(SMALL.enumerate())[1:3]))
    process = DrawsProcess()
    sampler = OptunaSampler("gp", draws=process)
    first = sampler.propose(known, SMALL, 3)
    assert first is not None
    assert process._child is not None
    assert sampler.propose(known, SMALL, 3) == first
    process.close()


def test_a_killed_child_that_does_not_end_holds_nobody_up() -> None:
    """It waits inside the kernel; in its place a process that never seems to end."""
    waits: list[float] = []

    class Stuck:
        stdin = stdout = None

        def kill(self) -> None:
            waits.append(-1.0)

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "a wait without a bound"
            waits.append(timeout)
            raise subprocess.TimeoutExpired("draws", timeout)

    draws_process._end(Stuck())
    assert waits == [-1.0, draws_process.KILLED_S]
