"""What each change contributes: consistent with the speedup, or not shown."""

from __future__ import annotations

import math
from dataclasses import replace

import report_study
from study_fakes import measured, pick, spec

from autotune.answer.contributions import contributions
from autotune.answer.pick import answer
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Contamination, Estimate
from autotune.model.study import Study
from autotune.model.trial import Stage

PAIR = Config({"a": 1, "b": 2})


def ratio(value: float, width: float = 0.02, n: int = 5) -> Estimate:
    low, high = value * math.exp(-width), value * math.exp(width)
    return Estimate(value=value, low=low, high=high, n=n, unit="ratio")


def screened(rates: dict[Config, float], flags: dict[Config, str] | None = None) -> Study:
    trials = [measured(i, Config(), 100.0, Stage.BASELINE) for i in range(2)]
    for config, rate in rates.items():
        trial = measured(len(trials), config, 100.0 * rate)
        if flags and config in flags:
            marked = Contamination(flags=(flags[config],))
            trial = replace(trial, outcome=replace(trial.outcome, contamination=marked))
        trials.append(trial)
    return Study(spec=spec(), trials=tuple(trials), stopped="finished")


def ablated(gains: dict[str, list[float]], total: float) -> tuple[Study, Config]:
    """A study whose winner was ablated: knob -> ln ratio with over without it, cycle by cycle."""
    study = report_study.made(0, ablations=0)
    winner = Config({"precision": "bf16", "channels_last": True})
    trials = list(study.trials)
    for cycle in range(len(next(iter(gains.values())))):
        runs = [(winner, 100.0 * total)]
        runs += [(winner.without(k), 100.0 * total / math.exp(logs[cycle])) for k, logs in gains.items()]
        for config, rate in runs:
            trial = measured(len(trials), config, rate, Stage.ABLATE)
            trials.append(replace(trial, group=cycle + 1))
    return replace(study, trials=tuple(trials)), winner


def named(found) -> list[str]:
    return sorted([*(k for part in found.parts for k in part.knobs), *found.not_separated])


def test_an_estimate_larger_than_the_speedup_is_not_shown() -> None:
    study = screened({Config({"a": 1}): 5.68, Config({"b": 2}): 1.3, PAIR: 1.35})
    found = contributions(study, pick("best", PAIR, ratio(1.35)))
    assert all(part.ratio.value <= 1.35 for part in found.parts)
    assert named(found) == ["a", "b"]


SHORT = {PAIR: 1.56, PAIR.without("b"): 1.5, PAIR.without("a"): 1.02, Config({"c": 1}): 0.9}
"""A short search has one reading of each change by itself, and one of both."""


def test_single_readings_of_a_short_search_give_what_they_can_and_its_range() -> None:
    found = contributions(screened(SHORT), pick("best", PAIR, ratio(1.6, 0.1, n=2)))
    (part,) = found.parts
    assert (part.knobs, part.source, found.not_separated) == (("a",), "estimated", ("b",))
    assert part.ratio.low < 1.5 < part.ratio.high
    assert part.ratio.low > 1.25


def test_readings_that_scatter_or_do_not_add_up_give_no_contribution() -> None:
    total = ratio(1.6, 0.1, n=2)
    noisy = screened(SHORT)
    runs = [measured(len(noisy.trials) + n, Config({"c": 1}), rate) for n, rate in enumerate((60.0, 130.0))]
    assert contributions(replace(noisy, trials=(*noisy.trials, *runs)), pick("best", PAIR, total)).parts == ()
    odd = {**SHORT, PAIR.without("b"): 0.9, Config({"a": 1, "c": 1}): 1.9}
    assert contributions(screened(odd), pick("best", PAIR, total)).of("a") is None


def test_a_reading_above_the_speedup_counts_as_the_speedup_within_its_noise() -> None:
    found = contributions(screened(SHORT), pick("best", PAIR, ratio(1.48, 0.1, n=2)))
    part = found.of("a")
    assert part is not None
    assert part.ratio.value == 1.48
    assert contributions(screened(SHORT), pick("best", PAIR, ratio(1.1, 0.05, n=2))).of("a") is None


def test_a_disturbed_reading_gives_no_contribution() -> None:
    rates = {Config({"a": 1}): 1.3, Config({"b": 2}): 1.25, PAIR: 1.6}
    calm = contributions(screened(rates), pick("best", PAIR, ratio(3.5)))
    assert calm.of("a") is not None
    disturbed = screened(rates, {Config({"b": 2}): "cpu_contended", PAIR: "neighbour"})
    found = contributions(disturbed, pick("best", PAIR, ratio(3.5)))
    assert found.of("b") is None
    assert "b" in found.not_separated


def test_a_single_change_contributes_the_speedup_itself() -> None:
    total = ratio(1.4)
    found = contributions(screened({}), pick("best", Config({"a": 1}), total))
    assert [(part.knobs, part.ratio) for part in found.parts] == [(("a",), total)]
    assert found.not_separated == ()


def test_the_script_itself_has_no_contributions() -> None:
    assert contributions(screened({}), pick("best", Config(), ratio(1.0))).parts == ()


def test_pairs_take_precedence_over_estimates_and_do_not_exceed_the_speedup() -> None:
    study = report_study.made()
    best = answer(study).best
    found = contributions(study, best)
    assert {part.source for part in found.parts} == {"pairs"}
    assert named(found) == sorted(best.config)
    assert 2.5 < math.prod(part.ratio.value for part in found.parts) < 1.05 * best.speedup.value


def test_a_change_that_contributes_nothing_is_shown_where_all_are_known() -> None:
    gains = {"precision": [0.40, 0.41, 0.40], "channels_last": [0.0, 0.01, -0.01]}
    study, winner = ablated(gains, math.exp(0.4))
    found = contributions(study, pick("best", winner, ratio(math.exp(0.4))))
    assert [part.knobs for part in found.parts] == [("precision",), ("channels_last",)]


def test_changes_that_need_one_another_are_not_separated() -> None:
    gains = {"precision": [0.50, 0.51, 0.50], "channels_last": [0.50, 0.49, 0.50]}
    study, winner = ablated(gains, math.exp(0.5))
    found = contributions(study, pick("best", winner, ratio(math.exp(0.5))))
    assert len(found.parts) == 1, "both together would exceed the speedup"
    assert math.prod(part.ratio.value for part in found.parts) <= math.exp(0.5) * 1.05
    assert named(found) == ["channels_last", "precision"]


def test_changes_that_replace_one_another_are_not_separated() -> None:
    gains = {"precision": [0.0, 0.01, -0.01], "channels_last": [0.0, 0.01, 0.0]}
    study, winner = ablated(gains, math.exp(0.4))
    found = contributions(study, pick("best", winner, ratio(math.exp(0.4))))
    assert found.parts == ()
    assert named(found) == ["channels_last", "precision"]


def test_pairs_too_few_or_too_far_apart_give_no_contribution() -> None:
    for logs in ([0.2, 0.2], [0.9, -0.5, 0.2]):
        study, winner = ablated({"precision": logs}, math.exp(0.2))
        found = contributions(study, pick("best", winner, ratio(math.exp(0.2))))
        assert all(part.source != "pairs" for part in found.parts)
        assert named(found) == ["channels_last", "precision"]


def test_throughput_contributes_nothing_to_a_gain_in_time_to_equal_loss() -> None:
    study = screened({Config({"a": 1}): 1.5, PAIR: 1.8})
    assert contributions(study, pick("best", PAIR, ratio(1.8))).parts
    found = contributions(study, pick("fastest", PAIR, ratio(1.8), effect=Effect.TRAINING))
    assert (found.parts, found.not_separated) == ((), ("a", "b"))
