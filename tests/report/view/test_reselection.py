"""Picking again under other wishes, without measuring."""

from dataclasses import replace

import pytest
import report_study
from report_study import GIB, SAFE, WINNER

from autotune.answer.pick import answer
from autotune.errors import AutotuneError, UsageError
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.objective import Constraint
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.report.view.reselection import SelectionCriteria, repick


@pytest.fixture(scope="module")
def study():
    return report_study.made()


def test_the_usual_wishes_pick_what_the_search_picked(study):
    again = repick(study, SelectionCriteria())
    assert not SelectionCriteria()
    assert again.answer == answer(study)


def test_a_bound_leaves_what_fits(study):
    whole = answer(study)
    bound = whole.best.peak_bytes - 1
    again = repick(study, SelectionCriteria(max_memory_bytes=bound))
    assert again.answer.best.config == SAFE
    assert again.answer.best.peak_bytes <= bound
    assert again.answer.best.speedup == whole.safe.speedup, "the same pairs, the same interval"
    assert any("The pick is confirmed" in n for n in again.notes)


def test_the_least_memory_is_of_what_is_confirmed_to_be_faster(study):
    again = repick(study, SelectionCriteria(objective="memory"))
    assert again.answer.is_better
    assert again.answer.best.config == SAFE
    assert answer(study).best.config == WINNER
    assert again.answer.best.peak_bytes < answer(study).best.peak_bytes
    assert again.study.spec.max_memory_bytes is None, "the bound that found it was not requested"


def test_what_single_runs_saw_is_an_estimate_and_never_the_pick(study):
    again = repick(study, SelectionCriteria(max_memory_bytes=answer(study).safe.peak_bytes - 1))
    assert not again.answer.is_better
    assert again.answer.best.config.is_baseline
    confirmed = {t.config for t in study.finished(Stage.CONFIRM)}
    for estimate in again.estimates:
        assert estimate.config not in confirmed
        assert estimate.ratio > 1.0
        assert estimate.peak_bytes <= again.wishes.max_memory_bytes
        assert study.space.effect(estimate.config) is not Effect.TRAINING
    assert again.estimates
    assert any("not confirmed in pairs" in n for n in again.notes)
    assert any("search again with its knobs pinned" in n for n in again.notes)


def test_a_bound_above_that_of_the_search_says_what_was_not_tried(study):
    bounded = replace(study, spec=replace(study.spec, max_memory_bytes=2 * GIB))
    again = repick(bounded, SelectionCriteria(max_memory_bytes=4 * GIB))
    assert any("few configurations above that" in n for n in again.notes)


def test_a_bound_takes_the_place_of_that_of_the_space(study):
    tight = Constraint(metric="peak_memory", at_most=1.0)
    held = replace(study, spec=replace(study.spec, constraints=(tight,)))
    assert not answer(held).is_better
    assert repick(held, SelectionCriteria(max_memory_bytes=64 * GIB)).answer.is_better


def test_a_script_that_needs_more_than_is_allowed_is_named(study):
    again = repick(study, SelectionCriteria(max_memory_bytes=GIB))
    assert any("Your unchanged script needs" in n for n in again.notes)


def test_without_a_baseline_there_is_nothing_to_pick_against(study):
    with pytest.raises(AutotuneError):
        repick(replace(study, trials=()), SelectionCriteria(objective="memory"))


def test_a_config_that_diverged_is_no_estimate(study):
    training_preserving = [
        t
        for t in study.finished(Stage.REFINE)
        if t.measurement is not None
        and t.config not in (WINNER, SAFE)
        and study.space.effect(t.config) is not Effect.TRAINING
    ]
    worst = max(training_preserving, key=lambda t: t.measurement.throughput.value)
    seen = worst.measurement
    rising = tuple(replace(p, loss=1.0 + i) for i, p in enumerate(seen.loss))
    bad = replace(worst, outcome=replace(seen, loss=rising))
    reported = replace(study, trials=tuple(bad if t.number == worst.number else t for t in study.trials))
    bound = SelectionCriteria(max_memory_bytes=answer(study).best.peak_bytes - 1)
    assert all(e.config != worst.config for e in repick(reported, bound).estimates)
    assert Config() not in {e.config for e in repick(reported, bound).estimates}


def test_a_config_that_failed_where_it_was_to_be_confirmed_is_no_estimate(study):
    bound = SelectionCriteria(max_memory_bytes=answer(study).safe.peak_bytes - 1)
    first = repick(study, bound).estimates[0].config
    pair = next(t for t in study.finished(Stage.CONFIRM) if not t.config.is_baseline)
    crash = Failure(kind=FailureKind.CRASH_EXIT, message="exit code 1")
    failed = replace(pair, number=len(study.trials), config=first, outcome=crash)
    assert first not in {e.config for e in repick(study.with_trial(failed), bound).estimates}


def test_nothing_is_reported_of_a_bound_that_nobody_set(study):
    whole, again = answer(study), repick(study, SelectionCriteria(objective="memory"))
    assert again.answer.caveats[: len(whole.caveats)] == whole.caveats
    (passed,) = again.answer.caveats[len(whole.caveats) :]
    assert "the objective is the least memory" in passed
    assert f"{whole.best.config.text()} reads {whole.best.speedup.value:.2f}" in passed
    assert f"needs {whole.best.peak_bytes / GIB:.2f} GiB" in passed
    assert not any("allowed" in c for c in again.answer.caveats)


def test_the_bound_of_the_search_is_kept_beside_that_of_the_wish(study):
    bounded = replace(study, spec=replace(study.spec, max_memory_bytes=2 * GIB))
    again = repick(bounded, SelectionCriteria(max_memory_bytes=4 * GIB))
    assert (again.study.spec.max_memory_bytes, again.own_max_bytes) == (4 * GIB, 2 * GIB)


def test_a_safe_pick_that_needs_more_is_still_there(study):
    def heavy(trial):
        if trial.measurement is None or trial.config != SAFE:
            return trial
        peak = trial.measurement.memory.peak_bytes + 60 * GIB
        memory = replace(trial.measurement.memory, pss=peak)
        return replace(trial, outcome=replace(trial.measurement, memory=memory))

    reported = replace(study, trials=tuple(map(heavy, study.trials)))
    again = repick(reported, SelectionCriteria(objective="memory"))
    assert again.answer.best.config == WINNER
    assert again.answer.safe.config == SAFE, "it is confirmed, and nobody set a bound that it breaks"
    assert again.answer.safe.speedup == answer(reported).safe.speedup


def counted(study, joules):
    """The study with an energy counter: joules per sample of each config, the script's under None."""
    reported = []
    for trial in study.trials:
        m, per_sample = trial.measurement, joules.get(trial.config, joules.get(None))
        if m is None or per_sample is None:
            reported.append(trial)
            continue
        spent = per_sample * m.effective_batch * m.steps
        reported.append(replace(trial, outcome=replace(m, extra={**m.extra, "energy_gpu_j": spent})))
    return replace(study, trials=tuple(reported))


def test_the_least_energy_is_of_what_is_confirmed_to_be_faster(study):
    frugal = counted(study, {None: 2.0, WINNER: 1.5, SAFE: 1.0})
    again = repick(frugal, SelectionCriteria(objective="energy"))
    assert answer(frugal).best.config == WINNER
    assert again.answer.best.config == SAFE
    assert again.answer.best.speedup == answer(study).safe.speedup, "the same pairs, the same interval"
    assert any("1.5 J per sample, the pick 1 J" in c for c in again.answer.caveats)
    assert any("least energy per sample" in n for n in again.notes)
    assert again.study.spec.constraints == frugal.spec.constraints, (
        "the bound that found it was not requested"
    )


def test_each_pick_has_its_own_bound_on_energy(study):
    again = repick(
        counted(study, {None: 2.0, WINNER: 1.2, SAFE: 1.6}), SelectionCriteria(objective="energy")
    ).answer
    assert (again.best.config, again.safe.config) == (WINNER, SAFE)


def test_energies_within_two_per_cent_are_the_same_and_the_faster_wins(study):
    again = repick(
        counted(study, {None: 2.0, WINNER: 1.51, SAFE: 1.5}), SelectionCriteria(objective="energy")
    )
    assert again.answer.best.config == WINNER


def test_energy_by_other_counters_than_the_scripts_is_not_compared(study):
    frugal = counted(study, {None: 2.0, WINNER: 1.5, SAFE: 1.0})
    reported = tuple(
        replace(t, outcome=replace(t.measurement, extra={**t.measurement.extra, "energy_cpu_j": 1.0}))
        if t.measurement is not None and t.config != SAFE
        else t
        for t in frugal.trials
    )
    again = repick(replace(frugal, trials=reported), SelectionCriteria(objective="energy"))
    assert again.answer.best.config == WINNER


def test_what_is_faster_and_takes_more_energy_than_the_script_is_not_picked_by_energy(study):
    hungry = counted(study, {None: 1.0, WINNER: 1.5, SAFE: 1.2})
    again = repick(hungry, SelectionCriteria(objective="energy"))
    assert answer(hungry).is_better
    assert not again.answer.is_better
    assert any("more energy per sample" in c for c in (*again.answer.caveats, again.answer.sentence))


def test_speed_can_be_wished_for_where_the_search_was_for_energy(study):
    frugal = counted(study, {None: 2.0, WINNER: 1.5, SAFE: 1.0})
    searched = replace(frugal, spec=replace(frugal.spec, objective="energy"))
    assert answer(searched).best.config == SAFE
    assert SelectionCriteria(objective="throughput")
    again = repick(searched, SelectionCriteria(objective="throughput"))
    assert again.answer.best.config == WINNER
    assert any("Criteria: speed" in n for n in again.notes)
    bounded = repick(searched, SelectionCriteria(max_memory_bytes=64 * GIB))
    assert bounded.answer.best.config == SAFE, "what the search was for stays wanted"


def test_energy_that_nothing_counted_and_cost_without_a_price_are_refused(study):
    with pytest.raises(UsageError, match="counted no energy"):
        repick(study, SelectionCriteria(objective="energy"))
    with pytest.raises(UsageError, match="without a price"):
        repick(study, SelectionCriteria(objective="cost"))


def test_the_least_cost_at_one_price_is_the_fastest(study):
    priced = replace(study, spec=replace(study.spec, price_per_hour=2.5))
    again = repick(priced, SelectionCriteria(objective="cost"))
    assert again.answer.best == answer(study).best
    assert any("at one price is the fastest" in n for n in again.notes)
