"""Throughput, efficiency, cost and the knee over the number of processes, from rounds with known rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from search_world import World, measurement, spec, tell, usual_space

from autotune.compare.scaling import Scaling, config_of, own_processes, scaling
from autotune.model.measurement import Contamination
from autotune.model.rank_figures import RankFigures, Straggler
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage

if TYPE_CHECKING:
    from autotune.model.trial import Outcome

COUNTS = (1, 2, 4)
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
CRASH = Failure(kind=FailureKind.CRASH_EXIT, message="ValueError: no")


def study_of(*rounds: dict[int, Outcome | float]) -> Study:
    """Rounds of (number of processes -> rate, or what the run ended with)."""
    world = World(space=usual_space(), speed={})
    study = replace(Study(spec=spec(), facts=world.facts()), space=world.space)
    for group, runs in enumerate(rounds, start=1):
        for count, ended in runs.items():
            config = config_of(count, COUNTS[0])
            proposal = Proposal(
                stage=Stage.CONFIRM, config=config, fidelity=FIDELITY, reason="", seed=group, group=group
            )
            outcome = measurement(ended) if isinstance(ended, float) else ended
            study = tell(study, proposal, outcome, 5.0)
    return study


def scaled(*rates: tuple[float, ...], price: float = 0.0) -> Scaling:
    return scaling(study_of(*(dict(zip(COUNTS, row, strict=True)) for row in rates)), COUNTS, price)


def test_efficiency_is_the_paired_speed_up_divided_by_the_factor_of_processes() -> None:
    found = scaled((100.0, 180.0, 240.0), (101.0, 181.8, 242.4), (99.0, 178.2, 237.6))
    first, second, third = (p.efficiency for p in found.points)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.value, first.low, first.high) == (1.0, 1.0, 1.0)
    assert second.value == pytest.approx(0.9)
    assert third.value == pytest.approx(0.6)
    assert second.low < 0.9 < second.high
    assert (second.n, second.unit) == (3, "ratio")


def test_a_million_samples_cost_the_price_of_all_processes_for_the_time_they_take() -> None:
    found = scaled((100.0, 180.0, 240.0), (100.0, 180.0, 240.0), price=3.6)
    costs = [p.cost for p in found.points]
    # 3.6 an hour is 0.001 a second; a million samples take 10,000 s with one process.
    assert [c.value for c in costs if c is not None] == pytest.approx([10.0, 11.111, 16.667], rel=1e-3)
    throughput, cost = found.points[1].throughput, costs[1]
    assert throughput is not None
    assert cost is not None
    assert cost.low == pytest.approx(2e3 / throughput.high)
    assert all(p.cost is None for p in scaled((100.0, 180.0, 240.0)).points)


@pytest.mark.parametrize(
    ("rates", "knee", "clear"),
    [
        ((100.0, 190.0, 360.0), 4, True),
        ((100.0, 190.0, 200.0), 2, True),
        ((100.0, 90.0, 80.0), 1, True),
        ((100.0, 151.0, 300.0), 4, False),  # half of the ideal gain is 150: too close to call
    ],
)
def test_the_knee_is_the_last_number_up_to_which_each_step_brings_half_of_its_ideal_gain(
    rates: tuple[float, ...], knee: int, clear: bool
) -> None:
    rounds = [tuple(rate * (1 + wave) for rate, wave in zip(rates, waves, strict=True)) for waves in WAVES]
    found = scaled(*rounds)
    assert (found.knee, found.is_clear) == (knee, clear)


WAVES = [(0.0, 0.01, 0.0), (0.01, 0.0, 0.01), (0.0, 0.0, 0.01), (0.01, 0.01, 0.0)]


def test_the_fastest_number_need_not_be_the_cheapest() -> None:
    found = scaled((100.0, 180.0, 240.0), (100.0, 180.0, 240.0))
    assert (found.fastest, found.cheapest) == (4, 1)


def test_one_round_leaves_the_intervals_open() -> None:
    found = scaled((100.0, 180.0, 240.0))
    efficiency = found.points[1].efficiency
    assert efficiency is not None
    assert (efficiency.low, efficiency.high) == (0.0, math.inf)
    assert not found.is_clear


def test_a_number_at_which_the_script_fails_has_its_reason_and_no_figure() -> None:
    found = scaling(study_of({1: 100.0, 2: 190.0, 4: CRASH}, {1: 100.0, 2: 190.0}), COUNTS)
    last = found.points[2]
    assert (last.throughput, last.efficiency) == (None, None)
    assert last.failure == f"{CRASH.kind.words}: ValueError: no"
    assert found.knee == 2


def test_steps_are_not_compared_where_samples_are_not_counted() -> None:
    def steps(rate: float) -> Outcome:
        found = measurement(rate)
        return replace(found, throughput=replace(found.throughput, unit="steps/s"))

    rounds = [{1: steps(10.0), 2: steps(9.0), 4: steps(8.0)}] * 3
    found = scaling(study_of(*rounds), COUNTS, 2.5)
    assert found.unit == "steps/s"
    assert (found.knee, found.fastest, found.cheapest) == (None, None, None)
    assert all((p.efficiency, p.cost) == (None, None) for p in found.points)


def test_a_run_beside_another_program_is_in_no_ratio_and_counted() -> None:
    busy = replace(measurement(20.0), contamination=Contamination(foreign_cpu_frac=1.0))
    found = scaling(study_of({1: 100.0, 2: 190.0}, {1: 100.0, 2: busy}, {1: 100.0, 2: 190.0}), (1, 2))
    efficiency = found.points[1].efficiency
    assert efficiency is not None
    assert efficiency.value == pytest.approx(0.95)
    assert found.set_aside == 1


def ranks(*shares: float) -> tuple[RankFigures, ...]:
    return tuple(
        RankFigures(
            rank=rank, device="cpu", steps=10, samples_per_step=8, input_wait_frac=0, communication_frac=share
        )
        for rank, share in enumerate(shares)
    )


def test_communication_is_averaged_and_the_commonest_straggler_named() -> None:
    late = Straggler(rank=1, device="cpu", wait_frac=0.2, low=0.1, high=0.3)
    one = replace(measurement(190.0), ranks=ranks(0.1, 0.3), straggler=late)
    other = replace(measurement(190.0), ranks=ranks(0.2, 0.4))
    found = scaling(study_of({1: 100.0, 2: one}, {1: 100.0, 2: one}, {1: 100.0, 2: other}), (1, 2))
    assert found.points[1].communication_frac == pytest.approx((0.2 + 0.2 + 0.3) / 3)
    assert found.points[1].straggler == 1
    assert (found.points[0].communication_frac, found.points[0].straggler) == (None, None)


def test_a_script_that_starts_its_own_processes_is_recognised() -> None:
    spawned = replace(measurement(100.0), ranks=ranks(0.1, 0.1))
    assert own_processes(study_of({1: spawned}), 1) == 2
    assert own_processes(study_of({1: 100.0, 2: spawned}), 1) == 0
