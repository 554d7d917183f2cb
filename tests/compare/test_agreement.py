"""Segments against fresh processes, knob by knob."""

from __future__ import annotations

import math

import pytest
from search_world import measurement, spec

from autotune.compare.agreement import BOUND, agreements, changed, distrusted, trusted
from autotune.model.config import Config, Value
from autotune.model.live import Observation, Visited
from autotune.model.measurement import Estimate
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Stage, Trial, TrialState

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def observation(ratio: float, width: float = 0.005, **changes: Value) -> Observation:
    return Observation(
        config=Config(changes),
        ratio=Estimate(
            value=ratio, low=ratio * math.exp(-width), high=ratio * math.exp(width), n=6, unit="ratio"
        ),
        seconds=2.0,
    )


def study(*observations: Observation, fresh: dict[Config, float] | None = None) -> Study:
    """The unchanged script, twice at 100 samples/s, the second time with a visit; then fresh runs."""
    runs = [(Config(), 100.0), (Config(), 100.0), *(fresh or {}).items()]
    trials = [
        Trial(
            number=number,
            config=config,
            stage=Stage.BASELINE if number < 2 else Stage.START,
            fidelity=FIDELITY,
            state=TrialState.TOLD,
            outcome=measurement(rate),
            seconds=30.0 if number == 1 else 8.0,
            visited=Visited(observations=observations, seconds=22.0) if number == 1 else None,
        )
        for number, (config, rate) in enumerate(runs)
    ]
    return Study(spec=spec(live=True), trials=tuple(trials))


def test_segments_without_a_fresh_process_beside_them_are_believed() -> None:
    found = study(observation(1.2, threads=1), observation(0.9, threads=2, tf32="high"))
    assert [(a.knob, a.segments, a.pairs, a.bias, a.rank) for a in agreements(found)] == [
        ("tf32", 1, (), None, None),
        ("threads", 2, (), None, None),
    ]
    assert distrusted(found) == frozenset()
    assert {c: round(math.exp(k.log_ratio), 6) for c, k in trusted(found).items()} == {
        Config({"threads": 1}): 1.2,
        Config({"threads": 2, "tf32": "high"}): 0.9,
    }


def test_both_ways_are_compared_by_config() -> None:
    one, two = Config({"threads": 1}), Config({"threads": 2})
    found = study(observation(1.22, threads=1), observation(0.8, threads=2), fresh={one: 120.0, two: 79.0})
    (agreement,) = agreements(found)
    assert agreement.bias == pytest.approx((math.log(1.22 / 1.2) + math.log(0.8 / 0.79)) / 2)
    assert agreement.rank == 1.0
    assert agreement.is_live
    assert "looks +1.5 % faster" in agreement.text
    assert "(2 configurations)" in agreement.text


def test_the_opposite_order_is_minus_one() -> None:
    one, two = Config({"threads": 1}), Config({"threads": 2})
    found = study(observation(1.01, threads=1), observation(0.99, threads=2), fresh={one: 99.0, two: 101.0})
    (agreement,) = agreements(found)
    # Below and above the script itself the wrong way round, and between the two of them.
    assert agreement.rank == -1.0


def test_three_configs_beyond_the_bound_end_the_trust_in_a_knob_alone() -> None:
    configs = [Config({"threads": n}) for n in (1, 2, 3)]
    live = [observation(1.05, width=0.15, threads=1), observation(0.94, width=0.15, threads=2)]
    live += [observation(1.06, width=0.15, threads=3), observation(1.1, gc_control="freeze")]
    two = study(*live, fresh=dict.fromkeys(configs[:2], 100.0))
    assert distrusted(two) == frozenset()
    three = study(*live, fresh=dict.fromkeys(configs, 100.0))
    assert distrusted(three) == {"threads"}
    assert set(trusted(three)) == {Config({"gc_control": "freeze"})}
    assert "no longer switched in a running process" in agreements(three)[1].text


def test_a_bias_beyond_doubt_needs_no_three() -> None:
    one = Config({"threads": 1})
    assert distrusted(study(observation(1.2, threads=1), fresh={one: 100.0})) == {"threads"}
    # 2 % between processes and a wide window leave room for this one.
    assert distrusted(study(observation(1.1, width=0.15, threads=1), fresh={one: 100.0})) == frozenset()
    assert distrusted(study(observation(1.0 + BOUND, threads=1), fresh={one: 100.0})) == frozenset()


def test_a_segment_that_is_known_too_badly_says_nothing() -> None:
    found = study(observation(0.5, width=1.9, threads=1), fresh={Config({"threads": 1}): 100.0})
    assert agreements(found) == ()
    assert trusted(found) == {}


def test_what_failed_says_nothing() -> None:
    failed = Observation(config=Config({"threads": 1}), ratio=None, seconds=1.0, failure="diverged")
    found = study(failed)
    assert agreements(found) == ()
    assert trusted(found) == {}


def test_a_visit_is_no_part_of_what_its_trial_took() -> None:
    found = study(observation(1.2, threads=1))
    assert [t.own_s for t in found.trials] == [8.0, 8.0]
    assert found.visits == [found.trials[1]]


def test_knobs_are_those_that_differ_from_the_process() -> None:
    assert changed(Config({"a": 1, "b": 2}), Config({"a": 1, "b": 3, "c": 4})) == ("b", "c")
    assert changed(Config({"a": 1}), Config()) == ("a",)
