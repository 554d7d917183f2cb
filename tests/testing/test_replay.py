"""Whole searches on a recorded table: the real strategy, session and journal on a virtual clock."""

from __future__ import annotations

import math
from pathlib import Path

import golden
import pytest
import recorded_world

from autotune.answer.pick import answer
from autotune.launch.fake import COMPUTE_BOUND
from autotune.model.config import Config
from autotune.model.trial import Stage, TrialState
from autotune.search.samplers.registry import SAMPLERS
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.testing.replay import RecordedPlanner, as_searched, replay

TABLE = recorded_world.table()


def course(sampler: str, seed: int = 0, workers: int = 1) -> list[tuple[object, ...]]:
    study = replay(TABLE, budget_s=120, sampler=sampler, seed=seed, workers=workers).study
    return [(t.number, t.stage, t.config, t.group, t.seconds, t.outcome) for t in study.trials]


def test_a_search_ends_with_what_the_table_has_as_fastest() -> None:
    ended = replay(TABLE, budget_s=300)
    found = answer(ended.study)
    best = max(recorded_world.CONFIGS, key=COMPUTE_BOUND.throughput)
    assert found.is_better
    assert COMPUTE_BOUND.throughput(found.best.config) > 0.98 * COMPUTE_BOUND.throughput(best)
    assert (
        found.best.speedup.low
        <= COMPUTE_BOUND.throughput(found.best.config) / COMPUTE_BOUND.throughput(Config()) * 1.03
    )
    assert ended.study.elapsed_s <= 300
    assert math.isclose(ended.trial_s, ended.study.elapsed_s, rel_tol=1e-6)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "staged"])
def test_every_sampler_takes_a_search_to_its_end(sampler: str) -> None:
    stages = {stage for _, stage, *_ in course(sampler)}
    assert {Stage.BASELINE, Stage.REFINE, Stage.CONFIRM} <= stages
    assert Stage.INITIAL not in stages


def test_a_seed_reproduces_a_search() -> None:
    assert course("staged", seed=1) == course("staged", seed=1)


def test_workers_run_at_once_and_everything_is_reported() -> None:
    ended = replay(TABLE, budget_s=120, sampler="brute", workers=4)
    assert all(trial.state is TrialState.FINISHED for trial in ended.study.trials)
    screened = [t for t in ended.study.trials if t.stage is Stage.REFINE]
    spent_s = max(t.finished_s for t in screened) - min(t.finished_s - t.seconds for t in screened)
    assert sum(t.seconds for t in screened) > 2 * spent_s
    assert ended.trial_s > ended.study.elapsed_s


def test_the_space_is_what_was_recorded() -> None:
    some = recorded_world.CONFIGS[:5]
    table = recorded_world.table(configs=some)
    study = replay(table, budget_s=100, sampler="random").study
    assert {t.config for t in study.trials} <= set(some)
    space, _ = RecordedPlanner(table).space(study.spec, table.header.facts)
    assert set(space.enumerate()) == set(some)
    assert space.complete(recorded_world.CONFIGS[-1]) == "It was not recorded."


def test_what_has_no_row_yet_is_no_candidate() -> None:
    some = recorded_world.CONFIGS[:5]
    rows = [recorded_world.row(c, 0, n) for n, c in enumerate(some)]
    table = recorded_world.table(*rows)
    assert len(table.header.configs) > len(some)
    study = replay(table, budget_s=60, sampler="random").study
    assert {t.config for t in study.trials} <= set(some)
    space, _ = RecordedPlanner(table).space(study.spec, table.header.facts)
    assert set(space.enumerate()) == set(some)


def test_the_journal_is_one_of_a_search_and_names_the_sampler(tmp_path: Path) -> None:
    ended = replay(TABLE, budget_s=100, sampler="coordinate", folder=tmp_path)
    journal = Journal.read(tmp_path / "journal.db")
    planner = RecordedPlanner(TABLE)
    folded = fold(journal.entries(), build=planner.space)
    journal.close()
    assert folded.spec.sampler == "coordinate"
    assert [t.config for t in folded.trials] == [t.config for t in ended.study.trials]


def test_a_table_that_grows_is_replayed_as_far_as_it_holds_runs() -> None:
    new, lost = recorded_world.CONFIGS[-2:]
    rows = [row for row in TABLE.rows if row.config not in (new, lost)]
    rows += [recorded_world.failed(lost, repeat, 90, "infra_lost") for repeat in range(3)]
    study = replay(recorded_world.table(*rows), budget_s=200, sampler="brute").study
    assert {t.config for t in study.trials} == set(recorded_world.CONFIGS[:-2])


def test_a_replayed_search_has_start_points_and_order_of_the_preset_that_a_search_would_choose() -> None:
    """On a CPU that one's, of which the table holds what it holds."""
    recorded = TABLE.header.request
    requested = as_searched(recorded)
    assert {c.name for c in requested.candidates} >= {"cpu", "default", "gpu_vision"}
    cpu = next(c for c in requested.candidates if c.name == "cpu")
    assert dict(cpu.knobs) == dict(recorded.knobs)
    assert list(cpu.knobs) == ["precision", "num_workers", "channels_last"], "in the order of the preset"
    assert {"precision": "bf16", "channels_last": True} in [dict(start) for start in cpu.starts]
    study = replay(TABLE, budget_s=120).study
    assert study.spec.space.name == "cpu"
    assert study.space is not None
    assert Config({"precision": "bf16", "channels_last": True}) in study.space.starts
    assert set(study.space.starts) <= set(TABLE.header.configs)


def test_searches_of_fixed_seeds_take_the_frozen_course() -> None:
    lines: list[str] = []
    for sampler, seed in (("staged", 0), ("staged", 1), ("tpe", 0), ("random", 0)):
        study = replay(TABLE, budget_s=120, sampler=sampler, seed=seed).study
        lines += [f"{sampler} seed {seed}: {answer(study).sentence}"]
        lines += [f"{t.stage.name} {t.config.text()} {t.group} {t.seconds:.6f}" for t in study.trials]
    golden.check("replayed_searches.txt", "\n".join(lines) + "\n")
