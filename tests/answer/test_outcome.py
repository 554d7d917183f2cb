"""Faster, nothing is faster, or inconclusive: the rule, the likely candidate, how to continue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.answer.answer import SearchOutcome
from autotune.answer.outcome import conclude, too_noisy_text
from autotune.answer.pick import answer
from autotune.answer.reasons import ratio_text
from autotune.compare.comparison import compare
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Contamination, Estimate, Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import SCRIPT_CHANGED, VERIFY, Budget, Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Outcome, Proposal, Stage

BASE = Config()
WORKERS = Config({"workers": 2})
BF16 = Config({"precision": "bf16"})
BATCH = Config({"effective_batch": 64})
SPACE = SearchSpace(
    dimensions={
        "workers": dimension("workers", (0, 2), 0, family="loader"),
        "precision": dimension(
            "precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC, family="precision"
        ),
        "effective_batch": dimension("effective_batch", (32, 64), 32, effect=Effect.TRAINING, family="batch"),
    }
)
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
WOBBLE = (0.0, 0.01, -0.012, 0.004, -0.006, 0.009)
FASTER, NOTHING, INCONCLUSIVE = SearchOutcome


def run(rate: float, *, seed: int = 0, **loss: object) -> Outcome:
    return measurement(rate, loss=loss_trace(seed=seed, jitter_seed=seed, **loss))  # type: ignore[arg-type]


def made(**more: object) -> Study:
    """The script in two runs."""
    study = Study(spec=spec(**more), space=SPACE, stopped="finished")  # type: ignore[arg-type]
    for seed in range(2):
        study = add(study, Stage.BASELINE, BASE, run(100.0, seed=seed), seed=seed)
    return study


def add(
    study: Study, stage: Stage, config: Config, outcome: Outcome, *, seed: int = 0, group: int = 0
) -> Study:
    proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="test", seed=seed, group=group)
    return tell(study, proposal, outcome, 12.0)


def screened(rates: dict[Config, float], **more: object) -> Study:
    study = made(**more)
    for config, rate in rates.items():
        study = add(study, Stage.REFINE, config, run(rate))
    return study


def paired(study: Study, config: Config, *ratios: float, **loss: object) -> Study:
    for group, ratio in enumerate(ratios, start=1):
        study = add(study, Stage.CONFIRM, BASE, run(100.0, seed=group + 1), seed=group + 1, group=group)
        faster = run(100.0 * ratio, seed=group + 1, **loss)
        study = add(study, Stage.CONFIRM, config, faster, seed=group + 1, group=group)
    return study


def clear(ratio: float, pairs: int) -> list[float]:
    return [ratio * math.exp(WOBBLE[k]) for k in range(pairs)]


def test_a_claimed_gain_is_faster_and_names_no_candidate_beside_it():
    found = answer(paired(screened({BF16: 150.0}), BF16, *clear(1.5, 5)))
    assert (found.outcome, found.is_better, found.likely, found.resume) == (FASTER, True, None, "")


def test_nothing_is_faster_only_after_every_family_that_applies_was_measured():
    half, whole = screened({WORKERS: 99.0}), screened({WORKERS: 99.0, BF16: 98.0})
    assert answer(half).outcome is INCONCLUSIVE
    closest = "The closest, workers=2, reads 0.99 in one run, not confirmed."
    assert answer(half).unsettled == ("Not measured yet: precision.", closest)
    assert answer(whole).outcome is NOTHING
    assert (answer(whole).unsettled, answer(whole).resume) == ((), "")


def test_a_family_that_a_ceiling_has_ruled_out_is_not_waited_for():
    study = screened({WORKERS: 99.0})
    found = conclude(study, compare(study), is_better=False, ruled_out=frozenset({"precision"}))
    assert found.outcome is NOTHING


def test_a_family_whose_configuration_failed_by_itself_counts_as_measured():
    failure = Failure(kind=FailureKind.CRASH_EXIT, message="exit code 1")
    assert answer(add(screened({WORKERS: 99.0}), Stage.REFINE, BF16, failure)).outcome is NOTHING


def test_where_no_loss_is_seen_families_that_round_differently_are_not_waited_for():
    study = Study(spec=spec(), space=SPACE, stopped="finished")
    for config in (BASE, BASE, WORKERS):
        stage = Stage.BASELINE if config.is_baseline else Stage.REFINE
        study = add(study, stage, config, measurement(100.0))
    assert answer(study).outcome is NOTHING


def test_nothing_tried_at_all_is_inconclusive_without_a_candidate():
    found = answer(made())
    assert (found.outcome, found.likely) == (INCONCLUSIVE, None)
    assert found.sentence == "Inconclusive: Not measured yet: precision, loader."


def test_a_candidate_that_read_faster_beyond_noise_needs_a_verdict():
    found = answer(screened({WORKERS: 99.0, BF16: 218.0}))
    likely = found.likely
    assert (found.outcome, found.best.config) == (INCONCLUSIVE, BASE)
    assert likely is not None
    assert (likely.pick, likely.config, likely.runs, likely.trial) == ("likely", BF16, 1, 3)
    assert likely.speedup.value == pytest.approx(2.18)
    assert likely.speedup.low < 2.0 < 2.18 < 2.4 < likely.speedup.high
    assert found.unsettled == ("precision=bf16 reads 2.18x in 1 run, not confirmed.",)


def test_a_reading_within_the_scatter_of_single_runs_needs_none():
    assert answer(screened({WORKERS: 101.0, BF16: 103.0})).outcome is NOTHING


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        (clear(1.01, 5), NOTHING),
        ([0.93, 1.06, 0.98, 1.01, 1.02], NOTHING),
        ([2.3, 2.0], INCONCLUSIVE),
        ([0.9, 1.5, 1.1, 1.3], INCONCLUSIVE),
    ],
    ids=["excludes a gain", "contains 1", "two pairs", "scatters"],
)
def test_pairs_settle_a_candidate_where_they_exclude_a_gain_worth_having(ratios, outcome):
    assert answer(paired(screened({WORKERS: 99.0, BF16: 130.0}), BF16, *ratios)).outcome is outcome


def test_pairs_count_before_screening_for_the_likely_candidate():
    study = paired(screened({WORKERS: 115.0, BF16: 300.0}), BF16, 2.26, 2.06)
    likely = answer(study).likely
    assert likely is not None
    assert (likely.config, likely.speedup.n, likely.runs) == (BF16, 2, 3)
    assert likely.speedup.value == pytest.approx(math.sqrt(2.26 * 2.06))


def test_a_loss_that_fails_settles_a_candidate_however_fast_it_is():
    study = paired(screened({WORKERS: 99.0, BF16: 150.0}), BF16, *clear(1.5, 6), stuck=True)
    found = answer(study)
    assert (found.outcome, found.likely) == (NOTHING, None)


def test_what_needs_more_memory_than_allowed_or_changes_the_training_is_no_likely_candidate():
    study = screened({WORKERS: 99.0, BATCH: 200.0}, max_memory_bytes=2**31)
    big = replace(measurement(300.0, peak_bytes=2**32), loss=loss_trace(seed=0))
    study = add(study, Stage.REFINE, BF16, big)
    found = answer(study)
    assert (found.outcome, found.likely) == (NOTHING, None)


def test_a_script_that_scatters_by_more_than_a_tenth_leaves_the_search_inconclusive():
    study = add(screened({WORKERS: 80.0, BF16: 75.0}), Stage.DRIFT_CHECK, BASE, run(40.0))
    found = answer(study)
    assert (found.outcome, found.likely) == (INCONCLUSIVE, None)
    assert found.unsettled[0] == "Too noisy for a verdict (your script alone varied 40-100 samples/s)."


def test_a_gain_whose_loss_has_too_few_values_is_no_evidence_that_nothing_is_faster():
    study = screened({WORKERS: 80.0, BF16: 150.0})
    measured = [(t, t.outcome) for t in study.trials if isinstance(t.outcome, Measurement)]
    trials = tuple(replace(t, outcome=replace(m, loss=m.loss[:2])) for t, m in measured)
    found = answer(replace(study, trials=trials))
    assert found.outcome is INCONCLUSIVE
    assert found.likely is not None
    assert found.likely.config == BF16


def test_a_disturbed_run_of_the_script_beside_calm_ones_is_no_noise():
    slow = run(8.5)
    assert isinstance(slow, Measurement)
    disturbed = replace(slow, contamination=Contamination(flags=("neighbour",)))
    study = add(screened({WORKERS: 80.0, BF16: 75.0}), Stage.DRIFT_CHECK, BASE, disturbed)
    assert not any("noisy" in text for text in answer(study).unsettled)


def test_a_likely_candidate_is_compared_with_every_run_of_the_script():
    study = screened({BF16: 150.0})
    for seed in (5, 6):
        study = add(study, Stage.CONFIRM, BASE, run(120.0, seed=seed), seed=seed, group=seed)
    likely = answer(study).likely
    assert likely is not None
    assert likely.speedup.value == pytest.approx(150.0 / math.sqrt(100.0 * 120.0))


def test_noise_is_named_with_the_range_of_the_scripts_own_runs():
    assert (
        too_noisy_text(screened({})) == "too noisy for a verdict (your script alone varied 100-100 samples/s)"
    )
    one = add(Study(spec=spec(), space=SPACE), Stage.BASELINE, BASE, run(74.0))
    assert too_noisy_text(one) == "too few runs for a verdict (your script was measured once)"


def test_the_command_has_time_for_missing_families_and_four_pairs_rounded_up_to_a_minute():
    # Runs take 12 s: 1 family and 4 pairs are 9 runs, 1.25 x 108 s + 30 s = 165 s.
    assert answer(screened({BF16: 150.0})).resume == "autotune resume test --budget 3m"
    # Both families missing: 10 runs, 180 s.
    assert answer(made()).resume == "autotune resume test --budget 3m"


def test_the_command_extends_a_limit_of_trials_as_well():
    found = answer(screened({BF16: 150.0}, budget=Budget(seconds=600.0, trials=3)))
    assert found.resume == "autotune resume test --budget 3m --trials 9"


def test_a_stopped_search_continues_with_what_is_left_of_its_budget_where_that_is_enough():
    study = replace(screened({BF16: 150.0}, budget=Budget(seconds=600.0)), stopped="interrupted")
    assert answer(study).resume == "autotune resume test"
    assert answer(replace(study, elapsed_s=590.0)).resume == "autotune resume test --budget 3m"


@pytest.mark.parametrize(
    "changes", [{"stopped": SCRIPT_CHANGED}, {"spec": spec(purpose=VERIFY)}], ids=["edited", "verify"]
)
def test_what_cannot_be_resumed_names_no_command(changes):
    assert answer(replace(screened({BF16: 150.0}), **changes)).resume == ""


def test_a_search_that_has_not_ended_concludes_nothing():
    found = answer(replace(screened({WORKERS: 99.0, BF16: 98.0}), stopped=""))
    assert (found.outcome, found.likely, found.resume) == (INCONCLUSIVE, None, "")
    assert found.unsettled == ("The search has not ended.",)


def test_an_interval_that_says_nothing_is_replaced_by_words():
    def text(value: float, low: float, high: float, n: int = 2) -> str:
        return ratio_text(Estimate(value=value, low=low, high=high, n=n, unit="ratio"))

    assert text(2.80, 0.07, 106.61) == "2.80 (too few runs for an interval)"
    assert text(2.80, 0.0, math.inf) == "2.80 (too few runs for an interval)"
    assert text(2.80, 1.1, 250.0) == "2.80 (at least 1.10)"
    assert text(2.18, 0.82, 5.81) == "2.18 [0.82, 5.81]"


def test_why_the_likely_candidate_is_not_confirmed_is_reported_once():
    study = screened({BF16: 150.0})
    for group in (1, 2):
        study = add(study, Stage.CONFIRM, BASE, run(100.0, seed=group), group=group)
        study = add(study, Stage.CONFIRM, BF16, measurement(150.0), group=group)
    found = answer(study)
    assert found.likely is not None
    (why,) = [text for text in (*found.unsettled, *found.caveats) if BF16.text() in text]
    assert "its loss is not shown to be as good" in why
