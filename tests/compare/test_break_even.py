"""When a compile has paid back, and what epochs cost that a window did not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import BASE, measured, spec, study

from autotune.answer.pick import answer
from autotune.compare.amortised_rate import amortised
from autotune.compare.break_even import break_even, over_epochs
from autotune.model.config import Config
from autotune.model.facts import LoaderFacts
from autotune.model.space import Dimension, SearchSpace
from autotune.model.trial import Stage

COMPILED = Config({"compile_mode": "default"})


def run(number, config, rate, stage=Stage.REFINE, *, compile_s=0.0, cold=False, steps=100, **extra):
    made = measured(number, config, rate, stage)
    outcome = replace(made.outcome, compile_s=compile_s, cold_compile=cold, steps=steps, extra=extra)
    return replace(made, outcome=outcome)


def made(*trials, run_steps=None, length=None):
    found = study(spec=spec(run_steps=run_steps), trials=trials)
    loader = LoaderFacts(
        site="train.py:1", batch_size=32, num_workers=0, prefetch_factor=None, pin_memory=False,
        persistent_workers=False, length=length,
    )  # fmt: skip
    assert found.facts is not None
    assert found.facts.run is not None
    return replace(found, facts=replace(found.facts, run=replace(found.facts.run, loader=loader)))


def both(**fields):
    base = run(0, BASE, 100.0, Stage.BASELINE)
    first = run(1, COMPILED, 200.0, compile_s=60.0, cold=True)
    again = run(2, COMPILED, 200.0, Stage.CONFIRM, compile_s=3.0)
    return made(base, first, again, **fields)


def test_a_compile_pays_back_when_the_time_it_took_is_made_up() -> None:
    paid = break_even(both(), COMPILED)
    assert paid is not None
    # 200 (t - 60) = 100 t
    assert paid.seconds == pytest.approx(120.0)
    assert paid.steps == round(60.0 * 200.0 / 32)
    assert (paid.compile_s, paid.warm_s, paid.run_s) == (60.0, 3.0, None)
    assert not paid.is_late


def test_what_it_gains_a_step_is_taken_within_cycles_and_not_from_means_over_different_ones() -> None:
    trials = [run(0, BASE, 100.0, Stage.BASELINE), run(1, COMPILED, 200.0, compile_s=60.0, cold=True)]
    # The machine slows down, and the last cycle ends after the script alone.
    for group, rates in enumerate(((100.0, 200.0), (100.0, 200.0), (40.0,)), start=1):
        for config, rate in zip((BASE, COMPILED), rates, strict=False):
            trials.append(replace(run(len(trials), config, rate, Stage.CONFIRM), group=group))
    paid = break_even(made(*trials), COMPILED)
    assert paid is not None
    assert paid.seconds == pytest.approx(120.0)


def test_what_the_script_compiles_itself_is_not_charged_and_its_scatter_is_no_compile() -> None:
    base = run(0, BASE, 100.0, Stage.BASELINE, compile_s=50.0, cold=True)
    alike = Config({"num_workers": 2})
    assert break_even(made(base, run(1, alike, 200.0, compile_s=52.0, cold=True)), alike) is None
    more = break_even(made(base, run(1, COMPILED, 200.0, compile_s=80.0, cold=True)), COMPILED)
    assert more is not None
    assert more.compile_s == pytest.approx(30.0)


def test_a_compile_after_the_window_has_to_be_made_up_as_well() -> None:
    def late(trial, seconds):
        return replace(trial, outcome=replace(trial.outcome, late_compile_s=seconds))

    base = run(0, BASE, 100.0, Stage.BASELINE)
    first = run(1, COMPILED, 200.0, compile_s=40.0, cold=True)
    again = late(run(2, COMPILED, 200.0, Stage.CONFIRM, compile_s=40.0), 20.0)
    paid = break_even(made(base, first, again), COMPILED)
    assert paid is not None
    assert (paid.compile_s, paid.warm_s) == (60.0, 60.0)
    assert paid.seconds == pytest.approx(120.0)
    # The script pays for its own.
    own = break_even(made(late(base, 20.0), first, again), COMPILED)
    assert own is not None
    assert own.compile_s == pytest.approx(40.0)


def test_a_run_that_is_over_before_is_too_short_for_it() -> None:
    short, long = break_even(both(run_steps=30), COMPILED), break_even(both(run_steps=3000), COMPILED)
    assert short is not None
    assert long is not None
    assert short.run_s == pytest.approx(30 * 32 / 100)
    assert short.is_late
    assert not long.is_late


def test_a_compile_that_makes_nothing_faster_never_pays() -> None:
    slow = run(1, COMPILED, 90.0, compile_s=60.0, cold=True)
    paid = break_even(made(run(0, BASE, 100.0, Stage.BASELINE), slow, run_steps=10_000), COMPILED)
    assert paid is not None
    assert (paid.steps, paid.seconds) == (None, None)
    assert paid.is_late


def test_what_does_not_compile_has_nothing_to_pay_back() -> None:
    assert break_even(both(), BASE) is None
    assert break_even(both(), Config({"num_workers": 2})) is None
    plain = made(run(0, BASE, 100.0, Stage.BASELINE), run(1, COMPILED, 120.0))
    assert break_even(plain, COMPILED) is None


def test_what_the_script_compiles_itself_is_not_charged_to_a_config() -> None:
    own = run(0, BASE, 100.0, Stage.BASELINE, compile_s=60.0, cold=True)
    assert break_even(made(own, run(1, COMPILED, 200.0, compile_s=60.0, cold=True)), COMPILED) is None


def test_a_window_without_a_start_is_charged_its_share_of_one() -> None:
    base = run(0, BASE, 100.0, Stage.BASELINE, steps=100, epoch_start_s=3.2, epoch_starts=0.0)
    found = made(base, length=100)
    # A step takes 0.32 s, an epoch of 100 steps 32 s, its start 3.2 s.
    assert over_epochs(found, base.outcome) == pytest.approx(32.0 / 35.2)
    assert amortised(found, base.outcome) == pytest.approx(100.0 * 32.0 / 35.2)


def test_a_window_with_a_start_too_many_gets_some_of_it_back() -> None:
    base = run(0, BASE, 100.0, Stage.BASELINE, steps=10, epoch_start_s=0.64, epoch_starts=1.0)
    assert over_epochs(made(base, length=100), base.outcome) > 1.0


@pytest.mark.parametrize(
    "extra", [{}, {"epoch_start_s": 1.0, "epoch_starts": 5.0}, {"epoch_start_s": 0.0, "epoch_starts": 1.0}]
)
def test_a_window_that_holds_many_starts_or_none_known_stays_unchanged(extra) -> None:
    base = run(0, BASE, 100.0, Stage.BASELINE, **extra)
    assert over_epochs(made(base, length=100), base.outcome) == 1.0
    assert over_epochs(made(base), base.outcome) == 1.0


def confirmed(run_steps):
    """Five pairs, twice as fast beyond doubt once compiled; compiling took a minute."""
    space = SearchSpace(
        dimensions={"compile_mode": Dimension(knob="compile_mode", values=("off", "default"), own="off")}
    )
    trials = [run(0, BASE, 100.0, Stage.BASELINE), run(1, COMPILED, 200.0, compile_s=60.0, cold=True)]
    for group in range(1, 6):
        for config, rate in ((BASE, 100.0 + group / 10), (COMPILED, 200.0 - group / 10)):
            trials.append(replace(run(len(trials), config, rate, Stage.CONFIRM), group=group))
    return replace(made(*trials, run_steps=run_steps), space=space)


def test_what_pays_back_after_the_end_of_the_run_is_not_recommended_and_reported_so() -> None:
    short = answer(confirmed(30))
    assert not short.is_better
    reported = " ".join(short.caveats)
    assert "its compile of 60 s pays back after 2 min, and your run is about 10 s" in reported


def test_what_pays_back_within_the_run_is_recommended_with_both_times() -> None:
    best = answer(confirmed(3000)).best
    assert best.config == COMPILED
    assert best.pays_back_s == pytest.approx(120.0, rel=0.02)
    assert best.run_s == pytest.approx(3000 * 32 / 100.3, rel=0.01)
    assert answer(confirmed(None)).best.run_s is None


def test_of_two_that_win_the_one_that_is_faster_over_the_planned_run_is_recommended() -> None:
    plain = Config({"channels_last": True})

    def found(run_steps: int | None) -> Config:
        made_ = confirmed(run_steps)
        trials = list(made_.trials)
        for group in range(1, 6):
            trials.append(replace(run(len(trials), plain, 180.0 - group / 10, Stage.CONFIRM), group=group))
        dimension = Dimension(knob="channels_last", values=(False, True), own=False)
        assert made_.space is not None
        space = SearchSpace(dimensions={**made_.space.dimensions, "channels_last": dimension})
        return answer(replace(made_, trials=tuple(trials), space=space)).best.config

    # 32 * 600 samples take 96 s and the compile, or 107 s without one; 32 * 6000 ten times as long.
    assert found(600) == plain
    assert found(6000) == COMPILED
    assert found(None) == COMPILED


def test_a_pick_says_what_is_left_of_its_speedup_over_the_planned_run() -> None:
    short, long, unknown = (answer(confirmed(steps)).best for steps in (3000, 30_000, None))
    assert short.config == long.config == unknown.config == COMPILED
    assert short.over_run is not None
    assert long.over_run is not None
    assert 1.0 < short.over_run < long.over_run < long.speedup.value
    assert unknown.over_run is None


def test_of_a_speedup_is_left_what_its_compile_leaves() -> None:
    paid = break_even(both(run_steps=3000), COMPILED)
    assert paid is not None
    # 960 s of the script, 480 s compiled, of which pairs have paid 3 s of the minute.
    assert paid.run_s == pytest.approx(960.0)
    assert paid.kept(2.0) == pytest.approx(480.0 / 537.0)
    assert replace(paid, run_s=None).kept(2.0) == 1.0
    assert replace(paid, charged_s=60.0).kept(2.0) == 1.0
    # What the script compiles itself is none of the config's: 40 s more cold, 5 s more warm.
    base = run(0, BASE, 100.0, Stage.BASELINE, compile_s=30.0)
    cold, warm = (run(n, COMPILED, 200.0, compile_s=s) for n, s in ((1, 70.0), (2, 35.0)))
    own = break_even(made(base, cold, warm, run_steps=3000), COMPILED)
    assert own is not None
    assert (own.compile_s, own.charged_s) == (40.0, 5.0)
