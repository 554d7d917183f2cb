"""The picks of a study: the recommended configs and their evidence. Pure; standard library only."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from autotune.answer.answer import Answer, Recommendation, SearchOutcome
from autotune.answer.caveats import caveats, seen_from_outside
from autotune.answer.ceilings import not_required
from autotune.answer.closest import closest
from autotune.answer.eligibility import is_eligible, saves
from autotune.answer.front import front_members
from autotune.answer.outcome import candidate_text, conclude
from autotune.answer.reasons import closest_text, reasons_for, sentence
from autotune.compare.ablation import ablated, late_members
from autotune.compare.amortised_rate import amortised, baseline_runs, mean_rate, rate_unit
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.break_even import break_even
from autotune.compare.choice import fastest_of, fastest_training, most_saving
from autotune.compare.comparison import compare
from autotune.compare.control import claim_bar, control
from autotune.errors import AutotuneError
from autotune.loss.learning_rate import learning_rate_advice
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.answer.outcome import Conclusion
    from autotune.compare.comparison import Comparison
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_BASE = Config()


def answer_or_none(study: Study) -> Answer | None:
    """Return `answer(study)`, or None before a baseline run was measured."""
    return answer(study) if baseline_runs(study) else None


def answer(study: Study, *, score: Callable[[Measurement], float] | None = None) -> Answer:
    """Return the answer of a study so far; claims are based on confirmation runs only.

    A gain is claimed if the lower bound of its paired interval is above 1.00, it passed the loss guard, and
    the
    A/A control does not exclude 1.00. Among equally fast configs the one with less memory wins, then the one
    with fewer changes. Speed counts over the planned run, from an empty compile cache.

    Args:
        study: With a measured baseline.
        score: An objective in place of the study's: among configs that are confirmed to be faster, the one
            with the largest mean score of its confirmation runs is picked.

    Raises:
        AutotuneError: No baseline run was measured; see `answer_or_none`.
    """
    runs = baseline_runs(study)
    if not runs:
        message = "there is no answer before the baseline is measured"
        raise AutotuneError(message, hint="run `autotune doctor` and report this")
    compared = compare(study)
    identical = control(study)
    bar = claim_bar(identical)
    base = _baseline_pick(study, runs)
    winners = [c for c in compared if c.wins and c.speedup.low > bar and is_eligible(study, c)]
    winners = [c for c in winners if saves(study, c)]

    def choose(pool: Sequence[Comparison]) -> Comparison | None:
        if score is not None:
            scores = {one.config: _mean_score(study, one.config, score) for one in pool}
            return max(pool, key=lambda one: scores[one.config], default=None)
        if study.spec.objective == ENERGY:
            return most_saving(pool)
        return fastest_of(pool, lambda one: _kept_over_run(study, one))

    whole = ablated(study)
    if whole is not None and all(c.config != whole for c in winners):
        winners = [c for c in winners if c.config not in late_members(study)]
    training_preserving = [c for c in winners if c.effect is not Effect.TRAINING]
    safe = choose([c for c in training_preserving if c.effect is Effect.EXACT])
    best = choose(training_preserving)
    fastest = fastest_training(winners, best)
    picks = {
        "safe": _recommend(study, "safe", safe) if safe else replace(base, pick="safe"),
        "best": _recommend(study, "best", best) if best else replace(base, pick="best"),
    }
    found = conclude(study, compared, is_better=best is not None, bar=bar, ruled_out=not_required(study))
    # The outcome already has the reason why the likely candidate is not confirmed.
    rest = [c for c in compared if c not in winners and c is not found.likely]
    summary, unsettled = sentence(study, picks["best"], fastest, compared, bar), found.unsettled
    if study.stopped and found.outcome is SearchOutcome.INCONCLUSIVE:
        if found.likely is None and (near := closest(study)) is not None:
            unsettled += (f"The closest, {closest_text(study, near)}.",)
        summary = f"Inconclusive: {' '.join(unsettled)}" if fastest is None else summary
    return Answer(
        is_better=best is not None,
        baseline_throughput=base.throughput,
        baseline_peak_bytes=base.peak_bytes,
        safe=picks["safe"],
        best=picks["best"],
        fastest=_recommend(study, "fastest", fastest) if fastest else None,
        identical=identical,
        front=front_members(study),
        failures=_failures(study),
        sentence=summary,
        caveats=(
            *caveats(study, rest, identical, bar),
            *seen_from_outside(study, [c for c in (best, safe, fastest) if c is not None] or compared),
        ),
        outcome=found.outcome,
        likely=_likely_pick(study, found),
        unsettled=unsettled,
        resume=found.resume,
    )


def _mean_score(study: Study, config: Config, score: Callable[[Measurement], float]) -> float:
    runs = [t.measurement for t in study.finished(Stage.CONFIRM) if t.config == config and t.measurement]
    return fmean(score(measurement) for measurement in runs)


def _likely_pick(study: Study, found: Conclusion) -> Recommendation | None:
    """Return the likely candidate as a pick that can be applied by name, or None without one."""
    if found.likely is None:
        return None
    reads = f"It reads {candidate_text(found.likely.speedup, found.runs)}."
    pick = _recommend(study, "likely", found.likely)
    return replace(pick, runs=found.runs, reasons=tuple(filter(None, (reads, pick.loss.reason))))


def _baseline_pick(study: Study, runs: Sequence[Trial]) -> Recommendation:
    confirmed = [t for t in runs if t.stage is Stage.CONFIRM] or list(runs)
    measured = [t.measurement for t in confirmed if t.measurement]
    rates = [(amortised(study, m), m.throughput) for m in measured]
    pairs = len(confirmed) if confirmed[0].stage is Stage.CONFIRM else 0
    return Recommendation(
        pick="best",
        config=_BASE,
        trial=runs[0].number,
        effect=Effect.EXACT,
        speedup=Estimate(value=1.0, low=1.0, high=1.0, n=pairs, unit="ratio"),
        throughput=mean_rate(rates, rate_unit(study)),
        peak_bytes=largest_peak_bytes(study, _BASE),
        loss=LossVerdict(level=0, verdict="pass", reason="This is your unchanged script."),
        reasons=("Nothing was confirmed to be faster, so your script stays unchanged.",),
    )


def _recommend(study: Study, pick: str, chosen: Comparison) -> Recommendation:
    runs = [t.measurement for t in study.of(chosen.config) if t.measurement]
    compile_s = max((m.all_compile_s for m in runs), default=0.0)
    paid = break_even(study, chosen.config)
    whole = None
    if paid is not None and paid.run_s is not None:
        whole = chosen.speedup.value * paid.kept(chosen.speedup.value)
    return Recommendation(
        pick=pick,
        config=chosen.config,
        trial=chosen.trial,
        effect=chosen.effect,
        speedup=chosen.speedup,
        throughput=chosen.throughput,
        peak_bytes=chosen.peak_bytes,
        loss=chosen.loss,
        compile_s=compile_s if paid is None else paid.compile_s,
        break_even_steps=paid.steps if paid is not None else None,
        pays_back_s=paid.seconds if paid is not None else None,
        run_s=paid.run_s if paid is not None else None,
        over_run=whole,
        reasons=tuple(reasons_for(study, chosen)),
        advice=learning_rate_advice(study, chosen.config),
    )


def _kept_over_run(study: Study, chosen: Comparison) -> float:
    paid = break_even(study, chosen.config)
    return 1.0 if paid is None else paid.kept(chosen.speedup.value)


def _failures(study: Study) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in study.finished():
        if trial.failure is not None:
            label = trial.failure.kind.label
            counts[label] = counts.get(label, 0) + 1
    return counts
