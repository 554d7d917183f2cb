"""What is true of a table whose every run is noisy: made-up tables, of which that is known."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable

import levels
import numpy as np
import pytest

from autotune.model.config import Config

KNOBS = ("workers", "threads", "layout", "idle", "collector")
CONFIGS = [
    Config(dict(zip(KNOBS, values, strict=True)))
    for values in itertools.product((0, 1, 2), (1, 2), (False, True), (False, True), ("own", "frozen"))
]
NOISE = 0.06
Run = tuple[int, Config, float, float]


def true(config: Config) -> float:
    """Workers and threads quarrel; the layout gains; two knobs do nothing."""
    workers, threads = config["workers"], config["threads"]
    assert isinstance(workers, int)
    return 0.25 * workers * (threads == 1) - 0.1 * (threads == 1) + 0.15 * (config["layout"] is True)


def recorded(
    seed: int,
    *,
    level: Callable[[Config], float] = true,
    machine: Callable[[float], float] = lambda _: 0.0,
    again: tuple[Config, ...] = (),
    noise: float = NOISE,
) -> list[Run]:
    """One run of each, of some more, in a random order, a fifth of a minute each."""
    draw = random.Random(seed)
    order = [*CONFIGS, *(CONFIGS[0],) * 8]
    draw.shuffle(order)
    order += again
    each = enumerate(order)
    return [(n, c, n / 5, level(c) + machine(n / 5) + draw.gauss(0.0, noise)) for n, c in each]


def means(runs: list[Run]) -> dict[Config, float]:
    found: dict[Config, list[float]] = {}
    for _, config, _, y in runs:
        found.setdefault(config, []).append(y)
    return {config: statistics.fmean(values) for config, values in found.items()}


def misses(reported: dict[Config, float], level: Callable[[Config], float] = true) -> float:
    """Standard deviation of what they are off by."""
    return statistics.pstdev(reported[c] - level(c) for c in CONFIGS)


@pytest.mark.thorough
def test_levels_miss_what_is_true_by_far_less_than_single_runs() -> None:
    shares, sizes = [], []
    for seed in range(6):
        runs = recorded(seed)
        found = levels.levels(runs, KNOBS)
        shares.append(misses(found.of) / misses(means(runs)))
        sizes.append(found.sizes["noise"])
    assert max(shares) < 0.8
    assert statistics.fmean(shares) < 0.6
    assert statistics.fmean(sizes) == pytest.approx(NOISE, rel=0.2)


@pytest.mark.thorough
def test_configurations_that_differ_in_idle_knobs_alone_come_out_alike() -> None:
    runs = recorded(1)
    found, read = levels.levels(runs, KNOBS).of, means(runs)
    fastest = max(true(c) for c in CONFIGS)
    alike = [c for c in CONFIGS if true(c) == fastest]
    assert len(alike) == 4
    assert max(found[c] for c in alike) - min(found[c] for c in alike) < 0.02
    assert max(read[c] for c in alike) - min(read[c] for c in alike) > 0.05
    assert {c for c in CONFIGS if found[c] > max(found.values()) - 0.02} == set(alike)


@pytest.mark.thorough
def test_what_a_configuration_does_by_itself_is_believed_as_far_as_its_runs_agree() -> None:
    odd = [CONFIGS[5], CONFIGS[22], CONFIGS[31], CONFIGS[40]]

    def level(config: Config) -> float:
        return true(config) + 0.4 * (config in odd)

    runs = recorded(2, level=level, again=tuple(CONFIGS) * 2, noise=0.02)
    found = levels.levels(runs, KNOBS)
    assert found.sizes["own"] > 0.05
    assert all(found.of[c] - level(c) == pytest.approx(0.0, abs=0.04) for c in odd)


@pytest.mark.thorough
def test_one_that_stands_alone_is_believed_the_further_the_more_runs_it_has() -> None:
    odd = CONFIGS[22]

    def level(config: Config) -> float:
        return true(config) + 0.15 * (config == odd)

    shares: dict[int, list[float]] = {0: [], 3: []}
    for seed, more in itertools.product(range(6), shares):
        found = levels.levels(recorded(seed, level=level, again=(odd,) * more), KNOBS)
        middle = statistics.fmean(found.of[c] - true(c) for c in CONFIGS if c != odd)
        shares[more].append((found.of[odd] - true(odd) - middle) / 0.15)
    assert statistics.fmean(shares[3]) > statistics.fmean(shares[0]) + 0.1
    assert statistics.fmean(shares[3]) < 1.0


def test_the_slope_of_the_cost_is_that_of_its_values() -> None:
    model = levels.Model(recorded(2, again=tuple(CONFIGS[:9]), machine=lambda m: 0.1 * math.sin(m)), KNOBS)
    for x in (model.start({}), model.start({"own": 0.08, "minutes": 1.5, "drift": 0.2})):
        _, slope = model.cost(x)
        for k in range(len(x)):
            step = np.eye(len(x))[k] * 1e-5
            apart = model.cost(x + step)[0] - model.cost(x - step)[0]
            assert slope[k] == pytest.approx(apart / 2e-5, rel=1e-4, abs=1e-4)


def test_sizes_have_the_names_of_their_knobs() -> None:
    sizes = levels.levels(recorded(0), KNOBS).sizes
    assert list(sizes) == [*(f"knob {name}" for name in KNOBS), "pairs", "own", "drift", "minutes", "noise"]
    assert sizes["knob workers"] > 5 * sizes["knob idle"]


def test_a_machine_that_changes_is_reported_from_configurations() -> None:
    def slower(minutes: float) -> float:
        return 0.15 * math.sin(minutes / 2.0)

    runs = recorded(3, machine=slower, noise=0.02)
    found = levels.levels(runs, KNOBS)
    assert misses(found.of) < 0.4 * misses(means(runs))
    then = [slower(at) for _, _, at, _ in runs]
    reported = [m - x for m, x in zip(found.machine, then, strict=True)]
    assert statistics.pstdev(reported) < 0.5 * statistics.pstdev(then)


def test_what_is_reported_to_be_uncertain_is_off_by_so_much() -> None:
    off = []
    for seed in range(4):
        found = levels.levels(recorded(seed), KNOBS)
        middle = statistics.fmean(found.of[c] - true(c) for c in CONFIGS)
        off += [(found.of[c] - true(c) - middle) / found.sd[c] for c in CONFIGS]
    assert 0.6 < statistics.pstdev(off) < 1.5


def test_level_and_machine_and_rest_are_what_was_read() -> None:
    runs = recorded(4, machine=lambda minutes: 0.1 * (minutes > 4))
    found = levels.levels(runs, KNOBS)
    for (_, config, _, y), machine, rest in zip(runs, found.machine, found.rest, strict=True):
        assert found.of[config] + machine + rest == pytest.approx(y, abs=1e-4)
    assert statistics.fmean(found.machine) == pytest.approx(0.0, abs=1e-4)
    late = [m for (_, _, at, _), m in zip(runs, found.machine, strict=True) if at > 5]
    early = [m for (_, _, at, _), m in zip(runs, found.machine, strict=True) if at < 3]
    assert statistics.fmean(late) - statistics.fmean(early) == pytest.approx(0.1, abs=0.03)


@pytest.mark.thorough
def test_it_is_the_same_in_any_order_of_the_runs() -> None:
    runs = recorded(5)
    plain, turned = levels.levels(runs, KNOBS).of, levels.levels(runs[::-1], KNOBS).of
    assert {c: pytest.approx(y, abs=1e-4) for c, y in plain.items()} == turned


def test_minutes_of_a_row() -> None:
    later, earlier = levels.minutes("2026-11-24T10:01:30Z"), levels.minutes("2026-11-24T10:00:00Z")
    assert later - earlier == pytest.approx(1.5)
    assert levels.minutes("") == 0.0


@pytest.mark.thorough
def test_a_run_that_is_left_out_is_predicted_better_by_its_neighbours_than_by_the_other_of_its_own() -> None:
    runs = recorded(6, again=tuple(CONFIGS[:16]))
    model = levels.Model(runs, KNOBS)
    twice = [model.configs[at] in CONFIGS[1:16] for at in model.at]
    sizes = model.fit()
    by_levels, sd = model.left_out(sizes)
    by_means, _ = model.left_out(model.fit_alone(0.35))
    assert sum(twice) == 30
    assert statistics.pstdev(by_levels[twice]) < 0.9 * statistics.pstdev(by_means[twice])
    assert statistics.pstdev(by_levels[twice] / sd[twice]) == pytest.approx(1.0, abs=0.35)
