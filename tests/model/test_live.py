"""Segments as ratios to the anchors beside them."""

from __future__ import annotations

import math

import pytest

from autotune.model.config import Config
from autotune.model.live import DRIFT, Observation, Part, Source, Visit, Visited, visited
from autotune.model.measurement import Estimate
from autotune.model.wire import dumps, loads

A, B, C = (Config({"threads": n}) for n in (1, 2, 3))


def rate(value: float, width: float = 0.0, unit: str = "samples/s") -> Estimate:
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width), n=8, unit=unit)


def part(config: Config | None, value: float, width: float = 0.0, **more: str) -> Part:
    return Part(config=config, rate=rate(value, width), seconds=2.0, steps=40, **more)  # type: ignore[arg-type]


def ratios(found: Visited) -> list[float | None]:
    return [None if o.ratio is None else o.ratio.value for o in found.observations]


@pytest.mark.parametrize(
    ("configs", "parts"),
    [
        ((A,), (A, None)),
        ((A, B), (A, B, None)),
        ((A, B, C), (A, B, None, C, None)),
        ((A, B, C, A), (A, B, None, C, A, None)),
        ((), ()),
    ],
)
def test_the_own_config_comes_again_every_second_segment_and_last(
    configs: tuple[Config, ...], parts: tuple[Config | None, ...]
) -> None:
    assert Visit(configs=configs, window_s=1.0, limit_s=9.0).parts() == parts


def test_a_process_that_gets_slower_changes_no_ratio_by_more_than_half_a_step() -> None:
    """Every figure of a process that loses 2 % between anchors, its segments being 1.5 and 0.5 times it."""
    parts = [part(A, 1.5 * 100), part(B, 0.5 * 98), part(None, 98.0), part(C, 1.5 * 97), part(None, 96.0)]
    found = visited(rate(100.0), parts, 10.0)
    assert ratios(found) == [
        pytest.approx(1.5, rel=0.011),
        pytest.approx(0.5, rel=0.011),
        pytest.approx(1.5, rel=0.011),
    ]
    assert found.anchors == (100.0, 98.0, 96.0)
    for observation in found.observations:
        assert observation.ratio is not None
        truth = 0.5 if observation.config == B else 1.5
        assert observation.ratio.low < truth < observation.ratio.high
        assert observation.source is Source.SEGMENT


def test_intervals_of_windows_and_anchors_add_up() -> None:
    (observation,) = visited(
        rate(100.0, 0.04), [part(A, 120.0, 0.03), part(None, 100.0, 0.04)], 4.0
    ).observations
    assert observation.ratio is not None
    assert observation.ratio.value == pytest.approx(1.2)
    assert math.log(observation.ratio.high / 1.2) == pytest.approx(math.hypot(0.03, 0.04 / math.sqrt(2)))
    assert observation.log_sd == pytest.approx(math.hypot(0.03, 0.04 / math.sqrt(2)) / 1.96)
    assert observation.ratio.n == 8


def test_without_an_anchor_behind_it_a_segment_is_less_certain() -> None:
    alone, between = (
        visited(rate(100.0), [part(A, 120.0), *more], 4.0).observations[0]
        for more in ([], [part(None, 100.0)])
    )
    assert alone.log_sd == pytest.approx(DRIFT)
    assert between.log_sd == pytest.approx(0.0)
    assert alone.ratio is not None
    assert alone.ratio.value == pytest.approx(1.2)


def test_a_failure_is_its_segments_own_and_no_ratio() -> None:
    found = visited(
        rate(100.0), [part(A, 120.0), Part(config=B, rate=None, seconds=1.0, failure="diverged")], 3.0
    )
    assert ratios(found) == [pytest.approx(1.2), None]
    assert [o.failure for o in found.observations] == ["", "diverged"]
    assert found.failed
    assert math.isinf(found.observations[1].log_sd)
    assert not visited(rate(100.0), [part(A, 120.0)], 2.0).failed


@pytest.mark.parametrize(
    "bad",
    [rate(0.0), Estimate(value=9.0, low=0.0, high=10.0, n=3, unit="samples/s"), rate(90.0, unit="steps/s")],
)
def test_a_rate_that_says_nothing_makes_no_ratio(bad: Estimate) -> None:
    found = visited(rate(100.0), [Part(config=A, rate=bad, seconds=2.0), part(None, 100.0)], 4.0)
    assert ratios(found) == [None]
    assert not found.failed
    assert math.isinf(found.observations[0].log_sd)


def test_a_bad_anchor_is_passed_over() -> None:
    parts = [
        part(A, 120.0),
        Part(config=None, rate=None, seconds=1.0, failure="contended"),
        part(B, 80.0),
        part(None, 100.0),
    ]
    assert ratios(visited(rate(100.0), parts, 9.0)) == [pytest.approx(1.2), pytest.approx(0.8)]


def test_what_was_visited_survives_the_wire() -> None:
    found = visited(
        rate(100.0), [part(A, 120.0, 0.03), Part(config=B, rate=None, seconds=1.0, failure="diverged")], 3.0
    )
    assert loads(Visited, dumps(found)) == found
    assert loads(Observation, dumps(found.observations[0])) == found.observations[0]
    plan = Visit(configs=(A, B), window_s=1.5, limit_s=20.0)
    assert loads(Visit, dumps(plan)) == plan
    assert plan.deadline_s > plan.limit_s
