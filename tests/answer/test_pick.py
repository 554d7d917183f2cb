"""Claims rest on confirmation runs; nothing is recommended that is not faster was confirmed to be faster."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from search_world import GIB, dimension, loss_trace, measurement, spec, tell

from autotune.answer.pick import answer, answer_or_none
from autotune.compare import comparison, loss_verdicts
from autotune.compare.amortised_rate import objective_runs
from autotune.compare.comparison import Comparison, compare
from autotune.compare.control import control
from autotune.compare.finalists import finalists
from autotune.errors import AutotuneError
from autotune.loss.time_to_loss import EqualLoss
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import LossPoint, Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Outcome, Proposal, Stage
from autotune.statistics.spread import pooled_spread

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
BASE = Config()
EXACT = Config({"workers": 2})
NUMERIC = Config({"precision": "bf16"})
BOTH = Config({"precision": "bf16", "workers": 2})
TRAINING = Config({"effective_batch": 64})
SPACE = SearchSpace(
    dimensions={
        d.knob: d
        for d in (
            dimension("workers", (0, 2), 0),
            dimension("precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC),
            dimension("effective_batch", (32, 64), 32, effect=Effect.TRAINING),
        )
    }
)
WOBBLE = (0.0, 0.01, -0.012, 0.004, -0.006, 0.009)


class Builder:
    """A study trial by trial."""

    def __init__(self, **more: object) -> None:
        self.study = Study(spec=spec(**more), space=SPACE)  # type: ignore[arg-type]

    def add(
        self, stage: Stage, config: Config, outcome: Outcome, *, seed: int = 0, group: int = 0
    ) -> Builder:
        proposal = Proposal(
            stage=stage, config=config, fidelity=FIDELITY, reason="test", seed=seed, group=group
        )
        self.study = tell(self.study, proposal, outcome, 7.0)
        return self

    def baseline(self, rate: float = 100.0) -> Builder:
        for seed in range(2):
            self.add(Stage.BASELINE, BASE, run(rate, seed=seed), seed=seed)
        return self

    def screen(self, rates: dict[Config, float], **more: object) -> Builder:
        for config, rate in rates.items():
            self.add(Stage.REFINE, config, run(rate, jitter_seed=99, **more))
        return self

    def confirm(self, rates: dict[Config, float], cycles: int = 5, **more: object) -> Builder:
        for group in range(1, cycles + 1):
            for k, (config, rate) in enumerate({BASE: 100.0, **rates}.items()):
                noisy = rate * math.exp(WOBBLE[(group + 2 * k) % len(WOBBLE)])
                extra = {} if config.is_baseline else more
                outcome = run(noisy, seed=group + 1, jitter_seed=k, **extra)
                self.add(Stage.CONFIRM, config, outcome, seed=group + 1, group=group)
        return self


def run(rate: float, *, seed: int = 0, jitter_seed: int = 0, **more: object) -> Measurement:
    loss = {k: more.pop(k) for k in ("delay", "stuck", "jitter") if k in more}
    trace: tuple[LossPoint, ...] = loss_trace(seed=seed, jitter_seed=jitter_seed, **loss)  # type: ignore[arg-type]
    return measurement(rate, **{"loss": trace, **more})  # type: ignore[arg-type]


def test_without_a_baseline_there_is_no_answer() -> None:
    assert answer_or_none(Builder().study) is None
    with pytest.raises(AutotuneError, match="before the baseline"):
        answer(Builder().study)


def test_screening_alone_claims_nothing_but_says_what_it_saw() -> None:
    found = answer(Builder().baseline().screen({BOTH: 200.0}).study)
    assert not found.is_better
    assert found.best.config == BASE
    assert found.best.speedup.value == 1.0
    closest = f"the closest, {BOTH.text()}, reads 2.00 in one run, not confirmed."
    assert found.sentence == f"Nothing was confirmed to be faster; {closest}"


def test_a_confirmed_gain_is_claimed_with_its_interval() -> None:
    study = (
        Builder().baseline().screen({BOTH: 150.0, EXACT: 120.0}).confirm({BOTH: 150.0, EXACT: 120.0}).study
    )
    found = answer(study)
    assert found.is_better
    assert found.best.config == BOTH
    assert found.best.effect is Effect.NUMERIC
    assert found.best.loss.passed
    assert found.best.loss.level == 1
    assert found.safe.config == EXACT
    assert 1.0 < found.best.speedup.low < 1.5 < found.best.speedup.high
    assert found.best.speedup.n == 5
    assert "1.5" in found.sentence
    assert found.identical is not None
    assert found.identical.low <= 1.0 <= found.identical.high


def test_one_pair_is_not_enough_for_a_claim_but_has_a_finite_interval() -> None:
    study = Builder().baseline().screen({BOTH: 200.0}).confirm({BOTH: 200.0}, cycles=1).study
    found = answer(study)
    assert not found.is_better
    assert any("1 of 2 pairs" in c for c in found.caveats)
    (compared,) = compare(study)
    assert 0.1 < compared.speedup.low < 2.0 < compared.speedup.high < 20.0
    assert not compared.wins


def test_two_pairs_prove_a_gain_that_is_large_beside_the_scatter_of_earlier_runs() -> None:
    found = answer(Builder().baseline().screen({BOTH: 200.0}).confirm({BOTH: 200.0}, cycles=2).study)
    assert found.best.config == BOTH
    assert found.best.speedup.n == 2
    assert 1.5 < found.best.speedup.low < 2.0 < found.best.speedup.high < 2.7


def test_two_pairs_prove_nothing_where_screening_read_another_ratio() -> None:
    """The difference is scatter as well, whatever the two pairs agree on."""
    found = answer(Builder().baseline().screen({BOTH: 105.0}).confirm({BOTH: 200.0}, cycles=2).study)
    assert not found.is_better


def test_a_gain_inside_the_noise_is_not_claimed() -> None:
    found = answer(Builder().baseline().screen({BOTH: 103.0}).confirm({BOTH: 100.5}).study)
    assert not found.is_better
    assert found.best.config == BASE
    assert found.sentence.startswith("Nothing is confirmed to be faster")


@pytest.mark.parametrize("harm", [{"stuck": True}, {"delay": 0.2}])
def test_a_faster_config_that_harms_the_loss_is_not_recommended(harm: dict[str, object]) -> None:
    study = Builder().baseline().screen({BOTH: 200.0}, **harm).confirm({BOTH: 200.0}, **harm).study
    found = answer(study)
    assert not found.is_better
    assert any("its loss is not shown to be as good" in c for c in found.caveats)


def test_a_faster_config_whose_scaler_goes_on_skipping_steps_is_not_recommended() -> None:
    study = Builder().baseline().screen({BOTH: 200.0}).confirm({BOTH: 200.0}).study
    assert answer(study).best.config == BOTH
    skips = {"skipped_scaler_steps": 9.0, "opened_at_step": 30.0, "guarded_steps": 40.0}
    reported = tuple(
        replace(t, outcome=replace(t.measurement, extra=skips)) if t.config == BOTH and t.measurement else t
        for t in study.trials
    )
    found = answer(replace(study, trials=reported))
    assert not found.is_better
    assert any("scaler skipped" in c for c in found.caveats)


def test_a_faster_config_above_the_memory_bound_is_not_recommended() -> None:
    more = {"max_memory_bytes": 2 * GIB}
    builder = Builder(**more).baseline().screen({EXACT: 200.0, BOTH: 180.0})
    study = builder.confirm({EXACT: 200.0, BOTH: 180.0}, peak_bytes=3 * GIB).study
    assert not answer(study).is_better
    assert finalists(study) == ()


@pytest.mark.parametrize(("rate", "claimed"), [(200.0, False), (400.0, True)])
def test_a_baseline_that_differs_from_itself_bars_every_claim_below_that(rate: float, claimed: bool) -> None:
    builder = Builder().baseline().screen({EXACT: 200.0})
    for group in range(1, 9):
        # Odd runs slow, even runs fast, in the turn that the pairing of the control takes.
        base = 100.0 if group % 4 in (1, 0) else 160.0
        for config, its in ((BASE, base), (EXACT, rate)):
            builder.add(Stage.CONFIRM, config, run(its, seed=group + 1), seed=group + 1, group=group)
    identical = control(builder.study)
    assert identical is not None
    assert identical.low > 1.0
    found = answer(builder.study)
    assert found.is_better is claimed
    assert (found.best.config == BASE) is not claimed
    assert any("differs from itself" in c for c in found.caveats)
    if not claimed:
        assert "differs from itself" in found.sentence


def test_fewer_than_four_baseline_runs_make_no_control() -> None:
    assert control(Builder().baseline().confirm({EXACT: 150.0}, cycles=3).study) is None


def test_equally_fast_configs_go_by_memory_then_by_changes() -> None:
    builder = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 150.0})
    study = builder.confirm({BOTH: 150.0, NUMERIC: 149.8}).study
    assert answer(study).best.config == NUMERIC
    slim = [
        replace(t, outcome=replace(t.outcome, memory=replace(t.outcome.memory, pss=GIB // 2)))
        if t.config == BOTH and isinstance(t.outcome, Measurement)
        else t
        for t in study.trials
    ]
    assert answer(replace(study, trials=tuple(slim))).best.config == BOTH


def test_what_changes_the_training_is_named_only_where_it_beats_best() -> None:
    study = (
        Builder()
        .baseline()
        .screen({BOTH: 150.0, TRAINING: 220.0})
        .confirm({BOTH: 150.0, TRAINING: 220.0})
        .study
    )
    found = answer(study)
    assert found.best.config == BOTH
    assert found.fastest is not None
    assert found.fastest.config == TRAINING
    assert found.fastest.loss.level == 2
    slower = Builder().baseline().screen({BOTH: 150.0}).confirm({BOTH: 150.0, TRAINING: 151.0}).study
    assert answer(slower).fastest is None


def test_what_never_reaches_the_loss_is_not_named() -> None:
    study = Builder().baseline().screen({TRAINING: 220.0}).confirm({TRAINING: 220.0}, stuck=True).study
    assert answer(study).fastest is None
    assert not compare(study)[0].loss.can_clear


def test_a_config_that_shows_no_loss_where_the_script_shows_one_will_not_be_cleared() -> None:
    builder = Builder().baseline().confirm({BOTH: 150.0})
    mute = replace(
        builder.study,
        trials=tuple(
            replace(t, outcome=replace(t.outcome, loss=()))
            if t.config == BOTH and isinstance(t.outcome, Measurement)
            else t
            for t in builder.study.trials
        ),
    )
    loss = compare(mute)[0].loss
    assert loss.verdict == "unclear"
    assert not loss.can_clear


def test_finalists_are_best_then_safe_then_fastest() -> None:
    study = Builder().baseline().screen({BOTH: 150.0, EXACT: 120.0, TRAINING: 200.0, NUMERIC: 110.0}).study
    assert finalists(study) == (BOTH, EXACT, TRAINING)


def test_what_changes_the_training_needs_three_pairs_for_its_loss() -> None:
    def after(cycles: int) -> Comparison:
        built = Builder().baseline().screen({TRAINING: 400.0}, batch=64.0)
        return compare(built.confirm({TRAINING: 400.0}, cycles=cycles, batch=64.0).study)[0]

    assert after(3).loss.passed
    assert after(2).loss.verdict == "unclear"
    assert after(2).loss.can_clear


def test_what_changes_the_training_is_confirmed_only_when_clearly_faster() -> None:
    assert finalists(Builder().baseline().screen({BOTH: 150.0, TRAINING: 155.0}).study) == (BOTH,)


def test_a_finalist_with_fewer_changes_comes_beside_the_fastest_within_the_noise() -> None:
    study = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 149.0}).study
    assert finalists(study) == (BOTH, NUMERIC)
    assert finalists(study, simpler="none") == (BOTH,)
    assert finalists(study, simpler="instead") == (NUMERIC,)
    apart = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 145.0}).study
    assert finalists(apart) == (BOTH,)


def test_pairs_tell_a_tie_from_a_gain_that_single_runs_cannot_show() -> None:
    """Three per cent are kept where pairs show them; where they show none, fewer changes win."""
    builder = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 149.0})
    assert answer(builder.confirm({BOTH: 150.0, NUMERIC: 145.5}).study).best.config == BOTH
    builder = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 149.0})
    assert answer(builder.confirm({BOTH: 150.0, NUMERIC: 150.0}).study).best.config == NUMERIC


def test_nothing_slower_than_the_baseline_is_confirmed() -> None:
    assert finalists(Builder().baseline().screen({BOTH: 90.0, EXACT: 99.0}).study) == ()


def test_a_finalist_that_fails_in_confirmation_makes_room_for_the_next() -> None:
    builder = Builder().baseline().screen({BOTH: 150.0, NUMERIC: 130.0})
    assert finalists(builder.study) == (BOTH,)
    crash = Failure(kind=FailureKind.CRASH_EXIT, message="crash")
    builder.add(Stage.CONFIRM, BOTH, crash, seed=2, group=1)
    assert finalists(builder.study) == (NUMERIC,)
    assert answer(builder.study).failures == {"crash_exit": 1}


def test_a_compile_that_never_pays_back_is_not_a_finalist() -> None:
    builder = Builder(run_steps=100).baseline()
    builder.add(Stage.REFINE, NUMERIC, run(150.0, compile_s=60.0, cold=True))
    assert finalists(builder.study) == ()
    longer = replace(builder.study, spec=replace(builder.study.spec, run_steps=100_000))
    assert finalists(longer) == (NUMERIC,)


def test_a_script_without_a_visible_loss_gets_exact_changes_only() -> None:
    builder = Builder().baseline().screen({NUMERIC: 200.0, EXACT: 150.0})
    study = builder.confirm({NUMERIC: 200.0, EXACT: 150.0}).study
    blind = replace(
        study,
        trials=tuple(
            replace(t, outcome=replace(t.outcome, loss=())) if isinstance(t.outcome, Measurement) else t
            for t in study.trials
        ),
    )
    found = answer(blind)
    assert found.best.config == EXACT
    assert any("No loss was seen" in c for c in found.caveats)


def test_without_a_visible_loss_no_time_goes_into_confirming_what_cannot_be_recommended() -> None:
    builder = Builder()
    builder.add(Stage.BASELINE, BASE, measurement(100.0))
    for config, rate in {NUMERIC: 200.0, TRAINING: 400.0, EXACT: 150.0}.items():
        builder.add(Stage.REFINE, config, measurement(rate))
    assert finalists(builder.study) == (EXACT,)
    seen = builder.baseline().study
    assert finalists(seen) == (NUMERIC, EXACT, TRAINING)


def test_the_front_holds_the_fastest_first_and_nothing_beaten() -> None:
    builder = Builder().baseline()
    builder.add(Stage.REFINE, BOTH, run(200.0, peak_bytes=4 * GIB))
    builder.add(Stage.REFINE, EXACT, run(90.0, peak_bytes=5 * GIB))
    front = answer(builder.study).front
    assert front[0].config == BOTH
    assert EXACT not in [m.config for m in front]
    assert BASE in [m.config for m in front]


def test_every_run_of_a_config_is_charged_the_same_compile() -> None:
    """Its first run filled the cache: what that took is for `break_even`, and no noise of its pairs."""
    builder = Builder(run_steps=2000).baseline()
    for group in range(1, 5):
        builder.add(Stage.CONFIRM, BASE, run(100.0, seed=group), seed=group, group=group)
        cold = group == 1
        outcome = run(150.0, seed=group, jitter_seed=1, compile_s=60.0 if cold else 3.0, cold=cold)
        builder.add(Stage.CONFIRM, EXACT, outcome, seed=group, group=group)
    (found,) = compare(builder.study)
    steady_s = 2000 * 32 / 150.0
    expected = math.log(1.5 * steady_s / (steady_s + 3.0))
    assert list(found.logs.values()) == pytest.approx([expected] * 4)
    paid = answer(builder.study).best
    assert (paid.config, paid.compile_s) == (EXACT, 60.0)


def test_the_time_to_equal_loss_is_reported_in_seconds_also_where_steps_alone_are_counted() -> None:
    builder = Builder().baseline().screen({TRAINING: 150.0}, batch=64.0)
    study = builder.confirm({TRAINING: 150.0}, batch=64.0).study
    stepped = replace(study, trials=tuple(replace(t, outcome=_in_steps(t.measurement)) for t in study.trials))
    (reported,), (known,) = compare(stepped), compare(study)
    assert known.speedup.value > 1.4
    assert reported.speedup.value == pytest.approx(known.speedup.value)
    assert reported.loss.passed


@pytest.mark.parametrize("keeps_early", [True, False])
def test_pairs_end_before_the_last_look_only_with_a_loss_that_keeps_up_at_the_level_of_that_look(
    keeps_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*parts: Any) -> EqualLoss:
        seen = loss_verdicts.found_equal_loss(*parts)
        assert seen is not None
        return replace(seen, keeps_up_early=keeps_early)

    monkeypatch.setattr(comparison, "found_equal_loss", found)
    builder = Builder().baseline().screen({TRAINING: 150.0}, batch=64.0)
    (reported,) = compare(builder.confirm({TRAINING: 150.0}, cycles=3, batch=64.0).study)
    assert reported.wins
    assert reported.loss.passed
    assert reported.is_early is keeps_early
    (slower,) = compare(Builder().baseline().confirm({TRAINING: 40.0}, cycles=3, batch=64.0).study)
    assert slower.speedup.high < 1.0
    assert slower.is_early


def _in_steps(made: Measurement | None) -> Measurement:
    assert made is not None
    rate = made.throughput
    return replace(made, throughput=replace(rate, value=rate.value / made.effective_batch, unit="steps/s"))


def test_a_pick_with_another_effective_batch_has_advice_on_the_learning_rate() -> None:
    builder = Builder().baseline().screen({EXACT: 150.0})
    for group in range(1, 6):
        for config, rate, batch in ((BASE, 100.0, 32.0), (EXACT, 150.0, 32.0), (TRAINING, 220.0, 64.0)):
            outcome = run(rate * (1.0 + group / 1000), seed=group + 1, batch=batch)
            builder.add(Stage.CONFIRM, config, outcome, seed=group + 1, group=group)
    found = answer(builder.study)
    assert found.fastest is not None
    assert found.fastest.advice.startswith("Learning rate: the effective batch is 2 times your script's")
    assert (found.best.config, found.best.advice, found.safe.advice) == (EXACT, "", "")


def test_who_came_late_or_left_early_costs_the_others_no_knowledge_of_the_spread() -> None:
    draw = random.Random(5)
    a, b, late = Config({"a": 1}), Config({"b": 1}), Config({"c": 1})

    def rates(spread: float) -> dict[int, dict[Config, float]]:
        machine = [draw.gauss(0.0, 0.2) for _ in range(6)]
        return {
            g: {c: 100.0 * math.exp(machine[g] + draw.gauss(0.0, spread)) for c in (Config(), a, b)}
            for g in range(6)
        }

    whole = rates(0.03)
    spread, df = pooled_spread(whole)
    assert df == (6 - 1) * (3 - 1)
    assert 0.015 < spread / math.sqrt(2.0) < 0.05
    once = {**whole, 5: {**whole[5], late: 140.0}}
    assert pooled_spread(once) == pytest.approx((spread, df))
    gone = {g: {c: rate for c, rate in r.items() if c != b or g < 3} for g, r in once.items()}
    left, fewer = pooled_spread(gone)
    assert fewer == len([1 for r in gone.values() for _ in r]) - 6 - 4 + 1
    assert 0.01 < left / math.sqrt(2.0) < 0.06
    assert pooled_spread({g: {c: r[c] for c in (Config(), a)} for g, r in whole.items()}) == (0.0, 0.0)


def test_what_diverged_once_is_no_finalist_whatever_it_reads_with_other_seeds() -> None:
    built = Builder().baseline().screen({NUMERIC: 150.0, EXACT: 120.0})
    assert finalists(built.study)[0] == NUMERIC
    nan = Failure(kind=FailureKind.DIVERGED, message="the loss is not a number")
    built.add(Stage.REFINE, NUMERIC, nan, seed=1)
    assert NUMERIC not in finalists(built.study)
    assert EXACT in finalists(built.study)


def test_a_full_compile_cache_makes_no_config_faster_and_no_machine_noisy() -> None:
    """Screening charges every run of a config its longest compile, as what ran once is charged."""
    study = replace(Builder(run_steps=1000).baseline().study, trials=())
    for number, compile_s in enumerate((40.0, 8.0)):
        m = replace(run(100.0, seed=number), compile_s=compile_s)
        proposal = Proposal(stage=Stage.BASELINE, config=BASE, fidelity=FIDELITY, reason="test", seed=number)
        study = tell(study, proposal, m, 7.0)
    first, second = objective_runs(study)[BASE]
    assert first == second
