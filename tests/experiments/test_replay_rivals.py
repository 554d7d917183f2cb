"""Rivals: what they run, in which order, when they stop; ASHA's rungs; all within the search's account."""

from __future__ import annotations

import types
from typing import Any

import pytest
import recorded_world
import rivals

from autotune.model.config import Config
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.measurement import Measurement
from autotune.model.space import Dimension, SearchSpace
from autotune.model.trial import Assignment, Fidelity, Launch, Segment, Stage
from autotune.testing.replay import replay
from autotune.testing.replay_runner import ReplayRunner

TABLE = recorded_world.table()
BATCHES = SearchSpace(
    dimensions={
        "batch_size": Dimension(knob="batch_size", values=(8, 16, 32, 64), own=32, ordinal=True),
        "precision": Dimension(knob="precision", values=("fp32", "bf16"), own="fp32"),
        "num_workers": Dimension(knob="num_workers", values=(0, 2, 4), own=0, ordinal=True),
    }
)


class Nothing(rivals.Bare):
    def propose(self, study: Any, space: Any) -> None:
        return None


def requested(*configs: Config) -> Any:
    return types.SimpleNamespace(trials=[types.SimpleNamespace(config=c) for c in configs])


def reported(monkeypatch: pytest.MonkeyPatch, rates: dict[Config, float]) -> None:
    monkeypatch.setattr(rivals, "screened", lambda study: rates)


def goes_on(rival: Any, rates: dict[Config, float | None], monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What it runs where every config reads as given; None fails."""
    done: dict[Config, float] = {Config(): rates.get(Config()) or 1.0}
    line: list[Config] = []
    while True:
        reported(monkeypatch, done)
        config = rival.propose(requested(Config(), *line), BATCHES)
        if config is None:
            return line
        line.append(config)
        rate = rates.get(config, 1.0)
        if rate is not None:
            done[config] = rate


@pytest.mark.parametrize("name", rivals.RIVALS)
def test_every_rival_takes_a_search_to_its_end(name: str) -> None:
    rival = rivals.RIVALS[name]
    study = replay(TABLE, budget_s=120, strategy=rival.make(), runner=rival.runner, sampler=name).study
    assert study.stopped == "finished"
    assert study.trials[0].stage is Stage.BASELINE
    if rival.is_bare:
        assert {t.stage for t in study.trials[1:]} <= {Stage.REFINE}
        tried = [t.config for t in study.trials]
        assert len(tried) == len(set(tried))
    else:
        assert any(t.stage is Stage.CONFIRM for t in study.trials)


def test_a_rival_ends_where_the_next_run_would_not_fit() -> None:
    study = replay(TABLE, budget_s=45, strategy=rivals.Shuffled()).study
    assert all(t.measurement for t in study.trials)
    assert 1 < len(study.trials) < len(recorded_world.CONFIGS)
    assert study.elapsed_s <= 45


# Successive halving ----------------------------------------------------------------------------


def assign(config: Config) -> Assignment:
    fidelity = Fidelity(
        min_window_s=1.0, max_window_s=4.0, min_steps=1, target_width=0.0, setup_s=60, deadline_s=300
    )
    launch = Launch(command=(), script="/x.py", argv=(), python="python", cwd="/", env={}, seed=0)
    segment = Segment(trial=0, config=config, fidelity=fidelity)
    return Assignment(uid="t0", study_id="s", attempt=1, launch=launch, segments=(segment,))


def measured(runner: ReplayRunner, config: Config) -> tuple[Measurement, float]:
    (ended,) = runner.play(assign(config))
    assert isinstance(ended.outcome, Measurement)
    return ended.outcome, ended.seconds


def test_a_process_that_goes_on_is_the_same_one_and_pays_its_start_once() -> None:
    config = recorded_world.CONFIGS[-1]
    assert measured(rivals.RungRunner(TABLE), config) == measured(ReplayRunner(TABLE), config)


def test_what_is_not_among_the_best_quarter_ends_at_its_rung_and_costs_less() -> None:
    runner = rivals.RungRunner(TABLE)
    line = [Config(), *reversed(recorded_world.CONFIGS[1:])]
    whole = [measured(ReplayRunner(TABLE), c) for c in line]
    played = [measured(runner, c) for c in line]
    cut = [p for p, w in zip(played, whole, strict=True) if p[0].window_s < 0.5 * w[0].window_s]
    kept = [p for p in played if p not in cut]
    assert cut
    assert kept
    # The unchanged script and the first of the others run to their end in any case.
    assert played[:2] == whole[:2]
    assert all(m.window_s < 1.5 for m, _ in cut)
    for (mine, mine_s), (theirs, whole_s) in zip(played, whole, strict=True):
        assert mine_s <= whole_s
        assert (mine_s < whole_s) is (mine.window_s < theirs.window_s)


def test_the_rung_is_a_quantile_of_what_others_read() -> None:
    assert rivals.quantile([1.0], 0.75) == 1.0
    assert rivals.quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.75) == 4.0
    assert rivals.quantile([0.0, 1.0], 0.75) == 0.75


# Sweeps and recipes ----------------------------------------------------------------------------


def batch(size: int, **more: Any) -> Config:
    return Config({**({} if size == 32 else {"batch_size": size}), **more})


def test_the_batch_finder_goes_up_until_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert goes_on(rivals.BatchFinder(), {}, monkeypatch) == [batch(8), batch(16), batch(64)]
    assert goes_on(rivals.BatchFinder(), {batch(16): None}, monkeypatch) == [batch(8), batch(16)]


def test_a_template_is_swept_while_more_gains_and_then_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {
        batch(8, precision="bf16"): 1.0,
        batch(16, precision="bf16"): 1.5,
        batch(32, precision="bf16"): 1.51,
        batch(8): 1.0,
        batch(16): None,
    }
    ran = goes_on(rivals.Templates(), rates, monkeypatch)
    assert ran == [
        *(batch(size, precision="bf16") for size in (8, 16, 32)),
        batch(8),
        batch(16),
    ]


def test_a_recipe_is_by_device_and_takes_what_the_space_has() -> None:
    host = HostFacts(cpus=2, physical_cores=2, memory_bytes=2**34, cpu_flags=("amx_bf16",))
    facts = Facts(host=host, script=ScriptFacts(path="x.py"))
    first, second = rivals.recipes(facts, BATCHES)
    assert first == second == {"num_workers": 2, "precision": "bf16"}
    assert rivals.nearest(BATCHES, first) == Config({"num_workers": 2, "precision": "bf16"})
    without = Facts(host=HostFacts(cpus=4, physical_cores=4, memory_bytes=2**34), script=facts.script)
    assert next(iter(rivals.recipes(without, BATCHES))) == {"num_workers": 4}


def test_a_recipe_that_was_not_recorded_gives_way_to_what_differs_least() -> None:
    study = replay(TABLE, budget_s=60, strategy=Nothing()).study
    wanted = {"precision": "bf16", "channels_last": True, "num_workers": 2}
    assert study.space is not None
    assert rivals.nearest(study.space, wanted) == Config(wanted)
    assert rivals.nearest(study.space, {**wanted, "num_workers": 4}) in (
        Config({k: v for k, v in wanted.items() if k != "num_workers"}),
        Config(wanted),
    )


# Optuna and coordinate descent -----------------------------------------------------------------


def test_what_the_mask_refuses_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    study = replay(TABLE, budget_s=60, strategy=Nothing()).study
    assert study.space is not None
    only = recorded_world.CONFIGS[3]
    fits = types.SimpleNamespace(fits=lambda config: float(config == only))
    monkeypatch.setattr(rivals, "MemoryModel", types.SimpleNamespace(of=lambda *_: fits))
    assert rivals.BareTpe(knows_failures=True, has_mask=True).propose(study, study.space) == only


def test_the_descent_begins_with_the_loader_where_the_loop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reported(monkeypatch, {Config(): 1.0})
    for waits, knob in ((0.5, "num_workers"), (0.0, "batch_size")):
        monkeypatch.setattr(rivals, "wait_frac", lambda study, frac=waits: frac)
        (changed,) = rivals.PriorDescent().propose(requested(Config()), BATCHES, 0)
        assert changed == knob


def test_the_descent_goes_on_from_the_fastest_and_ends_without_a_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rivals, "wait_frac", lambda study: 0.0)
    done, line = {Config(): 1.0}, [Config()]
    while True:
        reported(monkeypatch, done)
        config = rivals.PriorDescent().propose(requested(*line), BATCHES, 0)
        if config is None:
            break
        line.append(config)
        half, large = config.get("precision") == "bf16", config.get("batch_size") == 64
        done[config] = 1.0 + 0.5 * half + 0.1 * large
    best = max(done, key=lambda c: done[c])
    assert best == batch(64, precision="bf16")
    assert len(line) < BATCHES.size_bound()
