"""Harms are caught, rounding is not taken for one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_world import loss_trace, measurement

from autotune.loss.loss_guard import finite_and_sane, judge, scaler_skips
from autotune.loss.trace import FEWEST_POINTS
from autotune.model.measurement import LossPoint, Measurement

Traces = dict[int, tuple[LossPoint, ...]]


def traces(seeds: range, **more: float | bool) -> Traces:
    return {s: loss_trace(seed=s, **more) for s in seeds}  # type: ignore[arg-type]


BASE = traces(range(6))


def test_a_loss_that_falls_passes_level_zero() -> None:
    assert finite_and_sane(BASE[0]).passed


def test_no_loss_is_unclear() -> None:
    assert finite_and_sane(()).verdict == "unclear"


@pytest.mark.parametrize("points", range(9))
def test_the_losses_of_a_few_steps_are_unclear_and_break_nothing(points: int) -> None:
    base = {seed: trace[:points] for seed, trace in BASE.items()}
    few = {seed: trace[:points] for seed, trace in traces(range(4), jitter=3e-3, jitter_seed=7).items()}
    for changes_rng_streams in (False, True):
        verdict = judge(few, base, changes_rng_streams=changes_rng_streams, effective_batch=32)
        assert verdict.verdict == "unclear" or points >= FEWEST_POINTS, verdict
        assert verdict.reason
    assert finite_and_sane(few[0]).verdict in ("pass", "unclear")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails(value: float) -> None:
    broken = (*BASE[0][:30], replace(BASE[0][30], loss=value), *BASE[0][31:])
    assert finite_and_sane(broken).verdict == "fail"
    assert judge({0: broken}, BASE, changes_rng_streams=False).verdict == "fail"


def test_a_loss_that_doubles_fails_and_one_hard_batch_does_not() -> None:
    rising = tuple(replace(p, loss=1.0 + p.samples / 300) for p in BASE[0])
    assert finite_and_sane(rising).verdict == "fail"
    spike = (*BASE[0][:50], replace(BASE[0][50], loss=9.0), *BASE[0][51:])
    assert finite_and_sane(spike).passed


def skipping(skipped: float, *, opened_at: float = 30.0, steps: float = 100.0) -> Measurement:
    counted = {"skipped_scaler_steps": skipped, "opened_at_step": opened_at, "guarded_steps": steps}
    return replace(measurement(100.0), extra=counted)


def test_a_scaler_that_goes_on_skipping_steps_fails_level_zero() -> None:
    verdict = scaler_skips([skipping(4), skipping(10)], [skipping(0)])
    assert verdict is not None
    assert (verdict.level, verdict.verdict, verdict.steps) == (0, "fail", 200)
    assert "7%" in verdict.reason
    assert scaler_skips([skipping(5), skipping(5)], [skipping(0)]) is None


def test_steps_skipped_while_the_scale_is_found_are_no_harm() -> None:
    assert scaler_skips([skipping(16, opened_at=4.0)], [skipping(0)]) is None
    assert scaler_skips([skipping(30, opened_at=4.0)], [skipping(0)]) is not None


def test_a_script_that_skips_as_many_itself_is_not_harmed_by_it() -> None:
    assert scaler_skips([skipping(9)], [skipping(9)]) is None
    assert scaler_skips([measurement(100.0)], [measurement(100.0)]) is None


def test_differences_like_those_of_bf16_pass() -> None:
    candidate = traces(range(4), jitter=3e-3, jitter_seed=7)
    verdict = judge(candidate, BASE, changes_rng_streams=False, effective_batch=32)
    assert verdict.passed, verdict.reason
    assert verdict.paired
    assert verdict.steps == 60
    assert verdict.delay_frac_upper95 < 0.05


def test_the_same_numbers_pass_with_two_pairs() -> None:
    assert judge(traces(range(2)), BASE, changes_rng_streams=False).passed


def test_a_loss_that_stays_at_its_start_fails() -> None:
    verdict = judge(traces(range(4), stuck=True), BASE, changes_rng_streams=False)
    assert verdict.verdict == "fail"


def test_a_loss_stuck_in_a_noisy_script_does_not_pass() -> None:
    base = traces(range(5), seed_sd=3.0)
    assert not judge(traces(range(5), seed_sd=3.0, stuck=True), base, changes_rng_streams=False).passed


def test_a_delay_of_five_per_cent_is_caught_by_enough_pairs() -> None:
    verdict = judge(traces(range(6), delay=0.05, jitter_seed=3), BASE, changes_rng_streams=False)
    assert verdict.verdict == "fail", verdict
    assert verdict.delta > 0


def test_one_pair_is_too_few() -> None:
    assert judge(traces(range(1)), BASE, changes_rng_streams=False).verdict == "unclear"


def test_a_script_whose_seeds_change_nothing_still_lets_rounding_pass_and_a_stuck_loss_fail() -> None:
    base = {s: loss_trace(seed=0) for s in range(5)}
    near = {s: loss_trace(seed=0, jitter=1e-4, jitter_seed=s + 1) for s in range(5)}
    assert judge(near, base, changes_rng_streams=False).passed
    stuck = {s: loss_trace(seed=0, stuck=True) for s in range(5)}
    assert judge(stuck, base, changes_rng_streams=False).verdict == "fail"


def test_thinning_one_trace_more_than_the_other_does_not_unpair_them() -> None:
    def thinned(trace: tuple[LossPoint, ...]) -> tuple[LossPoint, ...]:
        return tuple(
            replace(b, loss=(a.loss + b.loss) / 2) for a, b in zip(trace[::2], trace[1::2], strict=True)
        )

    verdict = judge({s: thinned(t) for s, t in BASE.items()}, BASE, changes_rng_streams=False)
    assert verdict.passed
    assert abs(verdict.delta) < 1e-9


def test_streams_that_are_dealt_anew_are_judged_by_distribution() -> None:
    other = {s + 100: loss_trace(seed=s + 100, batch_sd=0.02) for s in range(10)}
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(10)}
    verdict = judge(other, base, changes_rng_streams=True)
    assert not verdict.paired
    assert verdict.verdict != "fail"
    stuck = {s: loss_trace(seed=s, stuck=True) for s in range(100, 106)}
    assert judge(stuck, base, changes_rng_streams=True).verdict == "fail"
    assert judge(dict(list(other.items())[:2]), base, changes_rng_streams=True).verdict == "unclear"


def redealt(seed: int, *, worse: float = 0.0) -> tuple[LossPoint, ...]:
    """A run whose batches are dealt anew and whose weights begin as those of its seed."""
    like, own = loss_trace(seed=seed, batch_sd=0.0), loss_trace(seed=seed + 900, seed_sd=0.0, batch_sd=0.02)
    level = loss_trace(seed=0, seed_sd=0.0, batch_sd=0.0, jitter=0.0)
    return tuple(
        replace(a, loss=a.loss + b.loss - c.loss + worse) for a, b, c in zip(like, own, level, strict=True)
    )


def test_what_runs_of_one_seed_share_lets_streams_dealt_anew_pass_after_few_runs() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.02) for s in range(6)}
    own = {s: redealt(s) for s in (0, 2, 3, 4, 5)}
    assert judge(own, base, changes_rng_streams=True).passed
    strangers = {s + 100: t for s, t in own.items()}
    assert judge(strangers, base, changes_rng_streams=True).verdict == "unclear"
    worse = {s: redealt(s, worse=0.15) for s in own}
    assert not judge(worse, base, changes_rng_streams=True).passed


def test_a_margin_of_few_runs_is_not_used_up() -> None:
    base = {s: loss_trace(seed=s, batch_sd=0.0) for s in range(5)}
    shifted = {s: tuple(replace(p, loss=p.loss + 1e-4) for p in t) for s, t in base.items()}
    margin = judge(shifted, base, changes_rng_streams=False).margin
    nearly = {s: tuple(replace(p, loss=p.loss + 0.9 * margin) for p in t) for s, t in base.items()}
    verdict = judge(nearly, base, changes_rng_streams=False)
    assert verdict.verdict == "unclear"
    assert "5 runs" in verdict.reason
    little = {s: tuple(replace(p, loss=p.loss + 0.5 * margin) for p in t) for s, t in base.items()}
    assert judge(little, base, changes_rng_streams=False).passed
    # Twice the margin may still be within it, as far as five runs know it; six times is not.
    twice = {s: tuple(replace(p, loss=p.loss + 2.0 * margin) for p in t) for s, t in base.items()}
    assert judge(twice, base, changes_rng_streams=False).verdict == "unclear"
    far = {s: tuple(replace(p, loss=p.loss + 6.0 * margin) for p in t) for s, t in base.items()}
    assert judge(far, base, changes_rng_streams=False).verdict == "fail"


def test_a_script_that_does_not_learn_reports_nothing() -> None:
    flat = traces(range(5), stuck=True)
    jittered = traces(range(5), stuck=True, jitter=1e-3, jitter_seed=5)
    assert judge(jittered, flat, changes_rng_streams=False).verdict != "fail"
