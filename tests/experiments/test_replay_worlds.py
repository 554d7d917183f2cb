"""Tables of one repeat with processes that scatter as the script's own do, and tables that mislead."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from typing import Any

import prediction_error
import pytest
import recorded_world
import score
import worlds

from autotune.compare.comparison import compare
from autotune.errors import UsageError
from autotune.loss.loss_guard import judge
from autotune.model.config import Config
from autotune.model.measurement import LossPoint, Memory
from autotune.model.trial import Stage
from autotune.testing.replay import replay
from autotune.testing.table import Table

OWN = 6
TABLE = recorded_world.table()
BF16 = Config({"precision": "bf16"})
COMPILED = Config({"compile_mode": "default"})


def single(own: int = OWN, **of_bf16: Any) -> Table:
    """One repeat; of the unchanged script as many runs, most of them between the others."""
    rows = [recorded_world.row(c, 0, n) for n, c in enumerate(recorded_world.CONFIGS)]
    rows = [replace(r, **of_bf16) if r.config == BF16 else r for r in rows]
    rows += [recorded_world.row(Config(), 0, 100 + n, sentinel=True) for n in range(own - 1)]
    return recorded_world.table(*rows)


def logs(table: Table, config: Config) -> list[float]:
    return [worlds.log_rate(table, row) for row in table.of(config)]


# One repeat ------------------------------------------------------------------------------------


def test_a_config_gets_as_many_processes_as_the_script_has_around_what_is_true_of_it() -> None:
    recorded = single()
    made, reported = worlds.world(recorded), worlds.table_levels(recorded)
    base = statistics.fmean(logs(made.table, Config()))
    for config in recorded_world.CONFIGS:
        found = logs(made.table, config)
        assert len(found) == OWN
        assert statistics.fmean(found) == pytest.approx(reported.of[config], abs=1e-9)
        true = math.log(made.truth.rates[config] / made.truth.base)
        assert statistics.fmean(found) - base == pytest.approx(true, abs=1e-9)
        # One per cent of noise, so that a level is hardly off from what was read.
        assert reported.of[config] == pytest.approx(statistics.fmean(logs(recorded, config)), abs=0.02)
    assert len({row.seed for row in made.table.of(BF16)}) == OWN
    assert made.notes["repeats"] == 1
    assert made.notes["own_runs"] == OWN


def test_the_scatter_is_that_of_the_scripts_own_processes_in_an_order_of_each_configs_own() -> None:
    recorded = single()
    made = worlds.scattered(recorded, {})
    spread = statistics.stdev(logs(recorded, Config()))
    assert spread > 0.002
    moved = {}
    for config in recorded_world.CONFIGS[1:]:
        found = logs(made, config)
        assert statistics.pstdev(found) == pytest.approx(spread)
        moved[config] = tuple(round(x - statistics.fmean(found), 6) for x in found)
    assert len({tuple(sorted(x)) for x in moved.values()}) == 1
    assert len(set(moved.values())) > 1
    assert logs(made, Config()) == pytest.approx(logs(recorded, Config()))


def test_the_scatter_of_a_world_is_the_noise_of_all_of_its_runs() -> None:
    made = worlds.world(single(own=12))
    noise = made.notes["sizes"]["noise"]
    for config in recorded_world.CONFIGS:
        assert statistics.stdev(logs(made.table, config)) == pytest.approx(noise, rel=0.1)


def compiling(*runs: tuple[Config, float, str]) -> Table:
    """One repeat, and runs of what compiles: configuration, seconds, kind of cache."""
    rows = [row for row in single().rows if row.config not in {config for config, _, _ in runs}]
    rows += [
        recorded_world.row(
            config, 0, 200 + n, compile_s=seconds, compile_cache=cache, charged_s=20.0 + seconds
        )
        for n, (config, seconds, cache) in enumerate(runs)
    ]
    return recorded_world.table(*rows)


def test_the_first_process_of_what_compiles_pays_a_cold_compile_and_the_others_a_warm_one() -> None:
    recorded = compiling((COMPILED, 6.0, "warm"), (COMPILED, 30.0, "cold"), (COMPILED, 4.0, "warm"))
    assert worlds.compile_times(recorded) == {COMPILED: (30.0, 5.0)}
    made = worlds.world(recorded).table.of(COMPILED)
    assert [(row.compile_s, row.compile_cache) for row in made] == [
        (30.0, "cold"),
        *[(5.0, "warm")] * (len(made) - 1),
    ]
    rest = {
        round(row.charged_s - row.compile_s - (row.window_s or 0) - (row.warmup_s or 0), 6)
        for row in made
        if row.compile_s
    }
    assert len(rest) == 1


def test_what_was_only_seen_with_one_kind_of_cache_has_the_other_by_what_others_show() -> None:
    alone = compiling((COMPILED, 5.0, "warm"), (BF16, 40.0, "cold"), (BF16, 10.0, "warm"))
    assert worlds.compile_times(alone) == {COMPILED: (20.0, 5.0), BF16: (40.0, 10.0)}
    apart = compiling((COMPILED, 5.0, "warm"), (BF16, 40.0, "cold"))
    assert worlds.compile_times(apart) == {COMPILED: (40.0, 5.0), BF16: (40.0, 5.0)}
    never = compiling((COMPILED, 30.0, "cold"))
    assert worlds.compile_times(never) == {COMPILED: (30.0, 30.0)}


def test_a_slower_process_costs_what_it_trains_longer_and_starts_as_fast() -> None:
    row = recorded_world.row(BF16, 0, 0)
    slower = row.slowed(1.5)
    assert slower.window_s == pytest.approx(1.5 * (row.window_s or 0))
    assert sum(slower.blocks.elapsed_s) == pytest.approx(1.5 * sum(row.blocks.elapsed_s))
    trains_s = (row.window_s or 0) + (row.warmup_s or 0)
    assert slower.charged_s == pytest.approx(row.charged_s + 0.5 * trains_s)
    assert slower.start_up_s == row.start_up_s
    broken = recorded_world.failed(BF16, 0, 0, "crash_exit")
    assert broken.slowed(1.5) == broken


def test_a_table_of_several_repeats_is_replayed_unchanged() -> None:
    made = worlds.world(TABLE)
    assert made.table.rows is TABLE.rows
    assert made.notes["repeats"] == 3


def uneven() -> Table:
    """The first repeat whole; of two more the unchanged script and one configuration, on slower days."""
    rows = [replace(r, began=f"2026-11-20T10:{n:02d}:00Z") for n, r in enumerate(single().rows)]
    for repeat, slower in ((1, 0.5), (2, 0.8)):
        for n, config in enumerate((Config(), BF16, Config(), Config())):
            began = f"2026-11-{20 + repeat}T10:{n:02d}:00Z"
            rows.append(recorded_world.row(config, repeat, n, produced_frac=slower, began=began))
    return recorded_world.table(*rows)


def test_slower_days_are_those_of_the_machine_and_count_against_no_configuration() -> None:
    recorded = uneven()
    made = worlds.world(recorded)
    own = len(logs(recorded, Config()))
    assert own == OWN + 6
    first = {
        c: [worlds.log_rate(recorded, r) for r in recorded.of(c) if r.repeat == 0]
        for c in recorded_world.CONFIGS
    }
    base = statistics.fmean(first[Config()])
    for config in (BF16, recorded_world.CONFIGS[1]):
        assert len(logs(made.table, config)) == own
        gain = math.log(made.truth.rates[config] / made.truth.base)
        assert gain == pytest.approx(statistics.fmean(first[config]) - base, abs=0.05)
    assert made.notes["runs"] == [1, 3]
    assert made.notes["sizes"]["drift"] > 0.1
    assert made.truth.quality(made.truth.oracle) == 1.0
    assert made.truth.rates[made.truth.oracle] == made.truth.oracle_rate
    searched = replay(made.table, budget_s=200).study
    assert len(searched.trials) > 4


def test_what_failed_in_most_of_its_runs_fails_in_all_that_are_made_of_it() -> None:
    rows = [r for r in uneven().rows if r.config != BF16]
    rows += [
        recorded_world.row(BF16, 0, 50),
        *(recorded_world.failed(BF16, r, 50, "crash_exit") for r in (1, 2)),
    ]
    made = worlds.world(recorded_world.table(*rows))
    assert {row.kind for row in made.table.of(BF16)} == {"crash_exit"}
    assert BF16 not in made.truth.rates


def test_too_few_runs_of_the_script_do_not_show_their_scatter() -> None:
    with pytest.raises(UsageError, match="do not show their scatter"):
        worlds.world(single(own=2))


def test_the_oracle_of_one_repeat_is_the_fastest_by_its_level() -> None:
    recorded = single()
    made, reported = worlds.world(recorded), worlds.table_levels(recorded)
    truth = made.truth
    fastest = max(recorded_world.CONFIGS, key=lambda c: reported.of[c])
    assert truth.oracle == fastest
    assert made.notes["level_sd"] == reported.sd[fastest]
    assert truth.quality(fastest) == 1.0
    assert truth.within(100) == len(recorded_world.CONFIGS)
    assert truth.within(0) == 1


def test_a_machine_changes_as_much_and_as_quickly_unchanged_reported_to() -> None:
    machine = worlds.Machine(0.1, 2.0, "a")
    path = [machine(worlds.MACHINE_STEP_S * n) for n in range(20_000)]
    assert statistics.pstdev(path) == pytest.approx(0.1, rel=0.15)
    later = round(120.0 / worlds.MACHINE_STEP_S)
    assert statistics.correlation(path[:-later], path[later:]) == pytest.approx(1 / math.e, abs=0.1)
    again = worlds.Machine(0.1, 2.0, "a")
    assert [again(at_s) for at_s in (500.0, 3.0, 500.0)] == [machine(at_s) for at_s in (500.0, 3.0, 500.0)]
    assert worlds.Machine(0.1, 2.0, "b")(0.0) != machine(0.0)


def test_the_machine_of_a_search_is_that_of_its_table_and_its_seed() -> None:
    steady, changing = worlds.world(TABLE), worlds.world(uneven())
    assert steady.machine(0) is None
    assert changing.drift == (changing.notes["sizes"]["drift"], changing.notes["sizes"]["minutes"])
    first, again, other = (machine(100.0) for machine in map(changing.machine, (0, 0, 1)) if machine)
    assert first == again != other


def traces(table: Table, config: Config) -> dict[int, list[LossPoint]]:
    return {
        row.seed: [
            LossPoint(samples=n, loss=x, t_s=t)
            for n, x, t in zip(row.loss_samples, row.loss_values, row.loss_t_s, strict=True)
        ]
        for row in table.of(config)
    }


def test_one_seed_shows_no_difference_of_loss() -> None:
    row = recorded_world.row(BF16, 0, recorded_world.CONFIGS.index(BF16))
    worse = tuple(x + 0.5 for x in row.loss_values)
    cut = slice(0, len(worse) - 3)
    shorter = {
        "loss_samples": row.loss_samples[cut],
        "loss_values": worse[cut],
        "loss_t_s": row.loss_t_s[cut],
    }
    made = worlds.scattered(single(**shorter), {})
    own, mine = traces(made, Config()), traces(made, BF16)
    assert mine[0][-1].samples == shorter["loss_samples"][-1]
    assert judge(mine, own, changes_rng_streams=False).reason == "The loss is the same to the last digit."
    assert judge(mine, own, changes_rng_streams=True).passed


def test_a_loss_that_breaks_stays_as_it_was() -> None:
    row = recorded_world.row(BF16, 0, recorded_world.CONFIGS.index(BF16))
    rising = tuple(1.0 + n for n in range(len(row.loss_values)))
    made = worlds.scattered(single(loss_values=rising), {})
    assert all(found.loss_values == rising for found in made.of(BF16))


def test_a_search_on_one_repeat_is_confirmed_as_any_other() -> None:
    made = worlds.world(single())
    study = replay(made.table, budget_s=200).study
    assert any(t.stage is Stage.CONFIRM for t in study.trials)
    assert any(found.wins for found in compare(study))


# Left out --------------------------------------------------------------------------------------


def test_runs_of_what_ran_again_are_predicted_first_and_later_ones_apart() -> None:
    found = prediction_error.predicted(uneven())
    assert {key: number for key, (number, _, _) in found.items()} == {
        ("first", "levels"): 1,
        ("later", "levels"): 2,
        ("first", "means"): 1,
        ("later", "means"): 2,
    }
    assert all(0.0 <= error < 1.0 for _, error, _ in found.values())
    assert prediction_error.predicted(single()) == {}


# Adverse variants ------------------------------------------------------------------------------


def test_in_a_flat_world_nothing_trains_faster_than_the_script_and_what_was_slower_stays_so() -> None:
    compiled = [recorded_world.row(COMPILED, 0, 90 + n, compile_s=30.0) for n in range(2)]
    world = worlds.world(replace(TABLE, rows=(*TABLE.rows, *compiled)))
    flat = worlds.flat(world)
    assert max(world.truth.rates.values()) > 1.2 * world.truth.base
    base = statistics.fmean(logs(world.table, Config()))
    for config in dict.fromkeys(row.config for row in world.table.rows):
        trained = statistics.fmean(logs(world.table, config))
        assert statistics.fmean(logs(flat.table, config)) == pytest.approx(min(trained, base), abs=1e-6)
        assert flat.truth.rates.get(config, 0.0) <= flat.truth.base
    assert flat.truth.quality(Config()) == 1.0
    assert not flat.truth.oracle


def test_in_an_inverted_table_what_gained_costs_as_many_times() -> None:
    plain, turned = score.Truth.of(TABLE), score.Truth.of(worlds.adverse(TABLE, "inverted"))
    assert turned.base == pytest.approx(plain.base, rel=0.001)
    for config in recorded_world.CONFIGS[1:]:
        gain, cost = plain.rates[config] / plain.base, turned.rates[config] / turned.base
        assert gain * cost == pytest.approx(1.0, rel=0.02)


def test_the_best_move_to_places_that_were_slow() -> None:
    moved = worlds.adverse(TABLE, "best-moved")
    plain, other = score.Truth.of(TABLE), score.Truth.of(moved)
    assert other.oracle != plain.oracle
    assert other.oracle not in sorted(plain.rates, key=lambda c: -plain.rates[c])[:2]
    assert sorted(other.rates.values()) == pytest.approx(sorted(plain.rates.values()), rel=0.01)
    assert Counter(row.config for row in moved.rows) == Counter(row.config for row in TABLE.rows)
    assert all(row.digest == row.config.digest for row in moved.rows)


def test_what_compiles_crashes_after_its_compile() -> None:
    row = recorded_world.row(COMPILED, 0, 99, compile_s=30.0)
    made = worlds.adverse(replace(TABLE, rows=(*TABLE.rows, row)), "compile-fails")
    (found,) = made.of(COMPILED)
    assert found.kind == "crash_exit"
    assert found.charged_s == pytest.approx((row.start_up_s or 0) + 30.0)
    assert not len(found.blocks)
    assert [r for r in made.rows if r.config != COMPILED] == list(TABLE.rows)


def test_a_small_machine_holds_the_script_and_not_what_needs_more() -> None:
    def sized(config: Config) -> Memory:
        return Memory(pss=2**30 * (1 + len(config)), limit=2**34)

    rows = tuple(replace(row, memory=sized(row.config)) for row in TABLE.rows)
    made = worlds.adverse(replace(TABLE, rows=rows), "small-memory")
    assert all(row.is_ok for row in made.of(Config()))
    failed = {row.config for row in made.rows if row.kind == "oom_host"}
    assert failed
    assert all(row.memory.limit < 2**34 for row in made.rows if row.is_ok and row.memory.limit)
    assert not failed & set(score.Truth.of(made).rates)


def test_a_variant_that_does_not_exist_is_answered_with_the_likeliest() -> None:
    with pytest.raises(UsageError, match="no variant") as raised:
        worlds.adverse(TABLE, "invert")
    assert "inverted" in raised.value.hint
