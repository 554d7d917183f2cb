"""What a machine that changes does to readings, told from what configs do."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from autotune.search.models.drift_model import NOISE, OnMachine, Run, fitted
from autotune.search.models.linear import Process

POINTS = list(itertools.product((0, 1, 2), (False, True), (False, True)))
GAINS = {p: 0.2 * p[0] + 0.1 * p[1] for p in POINTS}
EVERY_S = 8.0


def kernel(a: object, b: object) -> float:
    assert isinstance(a, tuple)
    assert isinstance(b, tuple)
    return 0.01 + 0.09 * sum(x == y for x, y in zip(a, b, strict=True)) + 0.0036 * (a == b)


def gain(point: object) -> float:
    assert isinstance(point, tuple)
    return GAINS[point]


def runs(seed: int, *, sd: float, noise: float = NOISE, times: int = 4) -> list[tuple[Run, float]]:
    """Every point so often in a random order; the machine changes within a minute and a half."""
    draw = random.Random(seed)
    order = [p for _ in range(times) for p in draw.sample(POINTS, len(POINTS))]
    alike, machine, found = math.exp(-EVERY_S / 90.0), draw.gauss(0.0, sd), []
    for n, point in enumerate(order):
        machine = alike * machine + draw.gauss(0.0, sd * math.sqrt(1.0 - alike**2))
        found.append((Run(point, EVERY_S * n), GAINS[point] + machine + draw.gauss(0.0, noise)))
    return found


def misses(process: Process) -> float:
    """By how much differences of points are off."""
    found = {p: process.predict(p)[0] for p in POINTS}
    return statistics.pstdev(found[p] - GAINS[p] for p in POINTS)


def plain(told: list[tuple[Run, float]]) -> Process:
    points = [run.point for run, _ in told]
    return Process.of(points, [y for _, y in told], [NOISE] * len(told), kernel)


def test_on_a_machine_that_changes_configs_are_told_apart_better() -> None:
    shares = []
    for seed in range(6):
        told = runs(seed, sd=0.12)
        process, _ = fitted(told, (), kernel, None)
        assert isinstance(process.kernel, OnMachine)
        assert process.kernel.sd >= 0.08
        shares.append(misses(process) / misses(plain(told)))
    assert statistics.geometric_mean(shares) < 0.75


def test_what_it_is_sure_of_is_so_on_a_machine_that_changes() -> None:
    off, off_plain = [], []
    for seed in range(6):
        told = runs(seed, sd=0.12, times=2)
        for found, into in ((fitted(told, (), kernel, None)[0], off), (plain(told), off_plain)):
            for one, other in itertools.combinations(POINTS, 2):
                mean, sd = found.difference(one, other)
                into.append((mean - GAINS[one] + GAINS[other]) / sd)
    assert 0.6 < statistics.pstdev(off) < 1.5
    assert statistics.pstdev(off_plain) > 2.0


def test_on_a_quiet_machine_nothing_is_different() -> None:
    told = runs(1, sd=0.0, noise=0.01)
    process, noise = fitted(told, (), kernel, None)
    assert noise == NOISE
    for point in POINTS:
        assert process.predict(point) == pytest.approx(plain(told).predict(point), abs=1e-9)


def test_a_machine_is_not_blamed_for_what_a_few_runs_show_of_configs() -> None:
    told = [(Run((0, False, False), 5.0), 0.0), (Run((2, False, False), 13.0), 0.4)]
    process, noise = fitted(told, (), kernel, None)
    assert noise == NOISE
    assert process.predict((2, False, False)) == pytest.approx(plain(told).predict((2, False, False)))


def test_noise_that_is_the_machines_own_in_every_run_is_no_change_of_it() -> None:
    told = runs(3, sd=0.0, noise=0.07, times=6)
    process, noise = fitted(told, (), kernel, None)
    assert noise >= 0.04
    assert isinstance(process.kernel, OnMachine)
    assert process.kernel.sd <= 0.04


def test_what_is_known_beside_counts_and_what_is_expected_is_where_it_begins() -> None:
    told = runs(4, sd=0.12)
    beside = (((2, True, True), 0.9, 0.001),)
    process, _ = fitted(told, beside, kernel, None)
    assert process.predict((2, True, True))[0] > fitted(told, (), kernel, None)[0].predict((2, True, True))[0]
    expected, _ = fitted(told[:1], (), kernel, gain)
    first = told[0][0].point
    others = [p for p in POINTS if p != first]
    assert statistics.pstdev(expected.predict(p)[0] - GAINS[p] for p in others) < 0.1


def test_runs_beside_one_another_share_the_machine_and_points_do_not() -> None:
    on = OnMachine(kernel, 0.1, 60.0)
    here, there = POINTS[0], POINTS[-1]
    assert on(here, there) == kernel(here, there)
    assert on(Run(here, 0.0), there) == kernel(here, there)
    assert on(Run(here, 0.0), Run(there, 60.0)) == pytest.approx(kernel(here, there) + 0.01 / math.e)
