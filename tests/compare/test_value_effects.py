"""What single runs let one expect of a knob."""

import itertools
import math
import random
from dataclasses import replace

import pytest
import report_study
from study_fakes import measured, spec

from autotune.compare.value_effects import best_of_each, estimated, parts
from autotune.model.config import Config
from autotune.model.measurement import Contamination
from autotune.model.study import Study
from autotune.model.trial import Stage


def study(rate, *, noise=0.01, configs=None):
    draw = random.Random(3)
    values = {"a": (None, 1, 2), "b": (None, "x"), "c": (None, True), "d": (None, 4)}
    every = [
        Config({k: v for k, v in zip(values, chosen, strict=True) if v is not None})
        for chosen in itertools.product(*values.values())
    ]
    trials = [measured(i, Config(), 100.0, Stage.BASELINE) for i in range(2)]
    for config in configs or [c for c in every if c]:
        value = 100.0 * rate(config) * math.exp(draw.gauss(0.0, noise))
        trials.append(measured(len(trials), config, value))
    return Study(spec=spec(), trials=tuple(trials), stopped="finished")


def test_effects_that_multiply_are_found_again():
    def rate(config):
        return {1: 1.1, 2: 1.4}.get(config.get("a"), 1.0) * (0.9 if "b" in config else 1.0)

    effects = estimated(study(rate))
    found = {(e.knob, e.value): e for e in effects.values}
    assert found["a", 2].ratio.value == pytest.approx(1.4, rel=0.03)
    assert found["a", 1].ratio.value == pytest.approx(1.1, rel=0.03)
    assert found["b", "x"].ratio.value == pytest.approx(0.9, rel=0.03)
    for effect in effects.values:
        assert effect.ratio.low < effect.ratio.value < effect.ratio.high
    assert found["c", True].ratio.low < 1.0 < found["c", True].ratio.high
    assert effects.interactions == ()
    assert best_of_each(effects)[0].knob == "a"
    assert best_of_each(effects)[0].value == 2


def test_two_knobs_that_need_one_another_are_named():
    def rate(config):
        return 1.3 if "b" in config and "c" in config else 1.0

    (joint, *_rest) = estimated(study(rate)).interactions
    assert joint.knobs == ("b", "c")
    assert joint.ratio.value > 1.1
    assert joint.ratio.low > 1.0


@pytest.mark.parametrize("gain", [3.0, 40.0, 200.0])
def test_a_large_gain_of_single_runs_is_no_scatter(gain):
    trials = [measured(0, Config(), 100.0, Stage.BASELINE)]
    for knob, factor in {"a": 1.0, "b": gain, "c": 1.01}.items():
        trials.append(measured(len(trials), Config({knob: 1}), 100.0 * factor))
    found = estimated(Study(spec=spec(), trials=tuple(trials), stopped="finished"))
    largest = best_of_each(found)[0]
    assert largest.knob == "b"
    assert largest.ratio.low > 0.75 * gain


def test_knobs_that_were_only_changed_together_are_not_distinguished():
    both = Config({"b": "x", "c": True})
    effects = estimated(study(lambda config: 1.5 if config else 1.0, configs=[both, both, Config({"a": 1})]))
    assert effects.interactions == ()
    found = {e.knob: e for e in effects.values}
    assert found["b"].ratio.high > 1.5 > found["b"].ratio.low


def test_without_anything_tried_there_is_nothing():
    assert estimated(Study(spec=spec())).values == ()
    alone = Study(spec=spec(), trials=(measured(0, Config(), 100.0, Stage.BASELINE),))
    assert estimated(alone).values == ()


def test_the_runs_that_confirm_tell_the_scatter_and_nothing_else():
    before = estimated(report_study.made(20, cycles=0, ablations=0))
    after = estimated(report_study.made(20))
    ratios = {(e.knob, e.value): e.ratio.value for e in after.values}
    assert {(e.knob, e.value): e.ratio.value for e in before.values} == pytest.approx(ratios, rel=0.01)
    assert all(e.ratio.low < e.ratio.value < e.ratio.high for e in after.values)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Designs of a short search: nine configs, two of them repeated."""
    winner = Config({"a": 1, "b": "x", "c": True, "d": 4})
    true = {"a": 0.3, "b": 0.1, "c": 0.0, "d": -0.05}
    configs = [winner, winner, *(winner.without(k) for k in "acd"), Config({"a": 1, "d": 4})]
    configs += [Config({"b": "x"}), Config({"c": True}), Config({"a": 1, "b": "x"})]
    for noise in (0.03, 0.08):
        hits: list[bool] = []
        for seed in range(60):
            draw = random.Random(seed)
            rates = [sum(true[k] for k in c) + draw.gauss(0.0, noise) for c in [Config(), Config(), *configs]]
            trials = [
                measured(n, c, 100.0 * math.exp(y), Stage.REFINE if c else Stage.BASELINE)
                for n, (c, y) in enumerate(zip([Config(), Config(), *configs], rates, strict=True))
            ]
            found = parts(Study(spec=spec(), trials=tuple(trials), stopped="finished"), winner)
            hits += [p.low <= math.exp(sum(true[k] for k in ks)) <= p.high for ks, p in found.items()]
        assert sum(hits) / len(hits) > 0.92


def test_a_part_of_a_winner_counts_with_what_it_does_to_the_others_there():
    def rate(config):
        alone = (1.2 if "b" in config else 1.0) * (1.1 if "c" in config else 1.0)
        return alone * (1.3 if "b" in config and "c" in config else 1.0)

    winner = Config({"b": "x", "c": True, "d": 4})
    found = parts(study(rate), winner)
    assert found["b",].value == pytest.approx(1.2 * 1.3, rel=0.05), "without b the joint gain is gone too"
    assert found["c",].value == pytest.approx(1.1 * 1.3, rel=0.05)
    assert found["b",].low > 1.0
    assert found["d",].low < 1.0 < found["d",].high, "it does nothing"
    assert [part.value for part in found.values()] == sorted(
        (part.value for part in found.values()), reverse=True
    )


def test_parts_that_no_run_had_apart_are_one():
    both = Config({"b": "x", "c": True})
    more = Config({**both, "d": 4})
    reported = study(lambda config: 1.5 * (1.2 if "d" in config else 1.0), configs=[both, both, more])
    found = parts(reported, more)
    assert list(found) == [("b", "c"), ("d",)]
    assert 1.0 < found["b", "c"].low < 1.5 < found["b", "c"].high
    assert found["d",].value == pytest.approx(1.2, rel=0.05)
    assert parts(reported, both) == {}, "pairs measure the whole"
    assert list(parts(reported, Config({"e": 1, "d": 4}))) == [("d",)], "what was never run is left out"
    assert parts(Study(spec=spec()), both) == {}


def test_parts_that_hardly_any_run_had_apart_are_one():
    both = {"a": 1, "b": "x"}
    configs = [Config({**both, **more}) for more in ({}, {"c": True}, {"d": 4}, {"c": True, "d": 4})]
    rarely = [*configs, Config({**both, "a": 2}), Config({"c": True})]
    found = parts(study(lambda config: 1.6 if "b" in config else 1.0, configs=rarely), configs[1])
    assert sorted(found) == [("a", "b"), ("c",)]
    assert 1.3 < found["a", "b"].low < 1.6 < found["a", "b"].high


def test_runs_beside_which_others_used_the_machine_are_no_part_of_the_fit():
    calm = study(lambda config: 1.3 if "b" in config else 1.0)
    slow = measured(len(calm.trials), Config({"d": 4}), 20.0)
    marked = replace(slow.outcome, contamination=Contamination(flags=("cpu_contended",)))
    busy = replace(calm, trials=(*calm.trials, replace(slow, outcome=marked)))
    assert estimated(busy) == estimated(calm)
