"""The front holds nothing that another config dominates by more than noise."""

from __future__ import annotations

from dataclasses import replace

from study_fakes import GIB, measured, spec

from autotune.answer.front import front_members
from autotune.model.config import Config
from autotune.model.measurement import Contamination, LossPoint, Memory
from autotune.model.study import Study
from autotune.model.trial import Stage, Trial

BASE = Config()
FAST, SLOW, OTHER = Config({"a": 1}), Config({"b": 1}), Config({"c": 1})
MIB = 2**20


def run(config: Config, rate: float, *, peak: float = GIB, loss: float = 1.0, flag: str = "") -> Trial:
    trial = measured(0, config, rate, Stage.REFINE if config else Stage.BASELINE)
    outcome = replace(
        trial.outcome,
        memory=Memory(pss=round(peak)),
        loss=tuple(LossPoint(samples=s, loss=loss, t_s=s / 100) for s in (32, 64, 96)),
        contamination=Contamination(flags=(flag,) if flag else ()),
    )
    return replace(trial, outcome=outcome)


def front(*trials: Trial) -> list[Config]:
    return [m.config for m in members(*trials)]


def members(*trials: Trial):
    numbered = tuple(replace(t, number=n) for n, t in enumerate(trials))
    return front_members(Study(spec=spec(), trials=numbered))


def test_a_slower_config_is_no_member_without_clearly_less_memory() -> None:
    own = [run(BASE, 100.0), run(BASE, 101.0)]
    assert front(*own, run(SLOW, 55.0)) == [BASE]
    assert front(*own, run(SLOW, 55.0, peak=GIB - 40 * MIB)) == [BASE], "less than 5 %"
    assert front(*own, run(SLOW, 55.0, peak=0.7 * GIB)) == [BASE, SLOW]


def test_a_few_mebibytes_of_a_small_process_are_noise() -> None:
    small = [run(BASE, 100.0, peak=100 * MIB), run(BASE, 101.0, peak=100 * MIB)]
    assert front(*small, run(SLOW, 55.0, peak=86 * MIB)) == [BASE]
    assert front(*small, run(SLOW, 55.0, peak=60 * MIB)) == [BASE, SLOW]


def test_memory_that_scatters_between_runs_has_to_be_cleared() -> None:
    runs = [run(BASE, 100.0, peak=p * GIB) for p in (0.8, 1.0, 1.25, 0.9)]
    assert front(*runs, run(SLOW, 55.0, peak=0.9 * GIB)) == [BASE]
    assert front(*runs, run(SLOW, 55.0, peak=0.4 * GIB)) == [BASE, SLOW]


def test_a_lower_loss_keeps_no_slow_config_on_the_front() -> None:
    assert front(run(BASE, 100.0), run(BASE, 100.0), run(SLOW, 55.0, loss=0.5)) == [BASE]


def test_a_fast_config_whose_loss_is_worse_dominates_none_whose_loss_holds() -> None:
    own = [run(BASE, 100.0), run(BASE, 100.0)]
    assert front(*own, run(FAST, 200.0, loss=3.0), run(OTHER, 150.0)) == [FAST, OTHER]
    assert front(*own, run(FAST, 200.0), run(OTHER, 150.0)) == [FAST]


def test_of_configs_that_are_equal_within_noise_the_one_with_most_runs_is_the_member() -> None:
    lucky = run(OTHER, 203.0)
    assert front(run(BASE, 100.0), run(FAST, 200.0), run(FAST, 201.0), run(FAST, 199.0), lucky) == [FAST]


def test_a_config_measured_only_beside_others_is_no_member_unless_all_were() -> None:
    own = run(BASE, 100.0)
    assert front(own, run(FAST, 300.0, flag="cpu_contended")) == [BASE]
    (alone,) = members(own, run(FAST, 150.0, flag="neighbour"), run(FAST, 200.0))
    assert (alone.config, alone.throughput, alone.is_disturbed) == (FAST, 200.0, False)
    busy = members(run(BASE, 100.0, flag="neighbour"), run(FAST, 200.0, flag="neighbour"))
    assert [(m.config, m.is_disturbed) for m in busy] == [(FAST, True)]


def test_a_study_without_a_measured_run_has_no_front() -> None:
    assert members() == ()
