"""The outcome of a search: faster, nothing faster, or inconclusive. Pure; standard library only.

"Nothing faster" requires evidence: every applicable knob family was measured, and every candidate that
measured faster has a verdict. Otherwise the search is inconclusive, and the answer has the likely candidate
and the command that continues.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.answer.answer import SearchOutcome
from autotune.answer.eligibility import is_eligible, saves, why_not
from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.compare.amortised_rate import amortised, baseline_runs, mean_rate, rate_unit
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.comparison import Comparison
from autotune.compare.coverage import measured
from autotune.compare.disturbances import undisturbed
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.compare.loss_verdicts import by_rule, loss_traces, loss_verdict
from autotune.compare.rounds import in_own_unit
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.knob_families import FAMILIES, applicable
from autotune.model.measurement import Estimate
from autotune.model.study import SCRIPT_CHANGED, VERIFY
from autotune.model.trial import Stage
from autotune.statistics.intervals import ratio_of_log, sd, t_quantile
from autotune.statistics.spread import run_spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

WORTH_HAVING: Final = 1.05
"""Smallest gain worth a change of the script: a candidate whose interval ends below it is settled."""

HARDLY_FASTER: Final = 1.03
"""A candidate below this ratio in enough pairs is settled if its interval contains 1."""

NOT_NOISE: Final = 1.10
"""A candidate above this ratio needs a verdict, whatever the scatter of the runs."""

NOISY_SPREAD: Final = 0.10
"""Standard deviation of single runs, in ln rate, from which a search without a claim is inconclusive: two
standard errors of one comparison then amount to a factor of 1.3."""

FURTHER_PAIRS: Final = 4
"""Pairs that a continuation has time for: one more than the fewest for a claim."""

_TWO_ERRORS: Final = 2.0
_FEWEST_IN_PAIRS: Final = 2
_SPARE: Final = 1.25
"""Factor on time for start-up and scheduling between runs."""
_ENDING_S: Final = 30.0
"""Time for the end of a search: report, MLflow, clean-up."""
_SCREENING: Final = (Stage.BASELINE, Stage.INITIAL, Stage.REFINE, Stage.DRIFT_CHECK)
_UNJUDGED: Final = LossVerdict(level=0, verdict="unclear")
_BASE: Final = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The conclusion from a study so far.

    Args:
        outcome: One of the three.
        likely: The most likely candidate of an inconclusive search; None if none measured faster.
        runs: Measured runs of `likely`.
        unsettled: Reasons why the search is inconclusive, as whole sentences.
        resume: Command that continues the search; empty if it cannot be continued.
    """

    outcome: SearchOutcome
    likely: Comparison | None = None
    runs: int = 0
    unsettled: tuple[str, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A candidate that measured faster, in two or more pairs or else in screening runs.

    Args:
        compared: From its pairs or its screening runs.
        in_pairs: Whether it comes from pairs.
        error: Standard error of its ln ratio.
    """

    compared: Comparison
    in_pairs: bool
    error: float

    @property
    def cautious(self) -> float:
        """Log of the speed-up minus one standard error."""
        return math.log(self.compared.speedup.value) - self.error


def conclude(
    study: Study,
    compared: Sequence[Comparison],
    *,
    is_better: bool,
    bar: float = 1.0,
    ruled_out: frozenset[str] = frozenset(),
) -> Conclusion:
    """Return the outcome of a study, with the likely candidate and the continuation if inconclusive.

    Args:
        study: The study so far, with a measured baseline.
        compared: From `autotune.compare.comparison.compare`.
        is_better: Whether a gain is claimed.
        bar: From `autotune.compare.control.claim_bar`.
        ruled_out: Families whose ceiling excludes a gain worth having.
    """
    if is_better:
        return Conclusion(outcome=SearchOutcome.FASTER)
    if not study.stopped:
        # The planner requests an answer before each late run; it does not need the evidence.
        return Conclusion(outcome=SearchOutcome.INCONCLUSIVE, unsettled=("The search has not ended.",))
    missing = _missing(study, ruled_out)
    alike = _alike(study)
    is_noisy = run_spread(alike.values()) > NOISY_SPREAD
    waiting = [r for r in _faster(study, compared, alike) if not _is_settled(study, r, bar)]
    if not (missing or waiting or is_noisy) and study.space is not None:
        return Conclusion(outcome=SearchOutcome.NOTHING_FASTER)
    likely = _likely(study, waiting)
    runs = 0 if likely is None else len(_runs(study, likely.config))
    return Conclusion(
        outcome=SearchOutcome.INCONCLUSIVE,
        likely=likely,
        runs=runs,
        unsettled=tuple(_unsettled(study, missing, likely, runs, bar, is_noisy=is_noisy)),
        resume=_resume(study, missing, likely),
    )


def too_noisy_text(study: Study) -> str:
    """Return ``too noisy for a verdict (your script alone varied 74-350 samples/s)``."""
    rates = [t.measurement.throughput.value for t in baseline_runs(study) if t.measurement]
    if len(rates) < 2:
        return "too few runs for a verdict (your script was measured once)"
    low, high = _number(min(rates)), _number(max(rates))
    return f"too noisy for a verdict (your script alone varied {low}-{high} {rate_unit(study)})"


def candidate_text(likely: Estimate, runs: int) -> str:
    """Return the reading of a likely pick: ``2.18x in 3 runs, not confirmed``."""
    return f"{likely.value:.2f}x in {runs} {'run' if runs == 1 else 'runs'}, not confirmed"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# -- missing measurements -------------------------------------------------------------------------


def _missing(study: Study, ruled_out: frozenset[str]) -> list[str]:
    """Return the applicable families that may bring a gain and were not measured, ordered as `FAMILIES`."""
    space = study.space
    if space is None:
        return []
    required = applicable(space) - ruled_out
    if not loss_traces(study, _BASE):
        # Without a loss only EXACT configs can be recommended.
        required &= {d.family for d in space.free() if d.effect is Effect.EXACT}
    missing = required - measured(study)
    return [family for family in FAMILIES if family in missing]


# -- faster candidates ----------------------------------------------------------------------------


def _faster(
    study: Study, compared: Sequence[Comparison], alike: Mapping[Config, Sequence[float]]
) -> list[_Reading]:
    """Return the training-preserving candidates that measured faster than the script and may be recommended.

    In pairs, any ratio above 1 counts. In screening runs, only a ratio beyond their noise or above
    `NOT_NOISE` counts.

    Args:
        study: The study so far.
        compared: From `autotune.compare.comparison.compare`.
        alike: From `_alike`, for runs of all stages.
    """
    space, failed = study.space, broken(study)
    if space is None:
        return []
    spread, screening = run_spread(alike.values()), _alike(study, *_SCREENING)
    own = alike.get(_BASE, [])  # with runs in pairs, like the mean shown next to it
    paired = {c.config: c for c in compared if c.speedup.n >= _FEWEST_IN_PAIRS}
    found: list[_Reading] = []
    for config in [*paired, *(c for c in screening if c not in paired)]:
        if config.is_baseline or config in failed or space.effect(config) is Effect.TRAINING:
            continue
        if config in paired:
            c = paired[config]
            error = max(sd(list(c.logs.values())), spread * math.sqrt(2.0)) / math.sqrt(c.speedup.n)
            if c.speedup.value > 1.0 and may_win(study, config):
                found.append(_Reading(compared=c, in_pairs=True, error=error))
        elif own:
            log = statistics.fmean(screening[config]) - statistics.fmean(own)
            error = spread * math.sqrt(1.0 / len(screening[config]) + 1.0 / len(own))
            if log > min(_TWO_ERRORS * error, math.log(NOT_NOISE)) and may_win(study, config):
                c = _from_screening(study, config, log, error, alike)
                found.append(_Reading(compared=c, in_pairs=False, error=error))
    return found


def _from_screening(
    study: Study, config: Config, log: float, error: float, alike: Mapping[Config, Sequence[float]]
) -> Comparison:
    """Return a comparison from screening runs; the scatter of all repeated runs gives its interval.

    Args:
        study: The study so far.
        config: A config with a measured run.
        log: ln ratio to the script.
        error: Standard error of `log`.
        alike: From `_alike`, for runs of all stages.
    """
    repeats = sum(len(logs) - 1 for logs in alike.values())
    half = t_quantile(0.975, max(1, repeats)) * error
    runs = _runs(study, config)
    windows = [
        (amortised(study, t.measurement), t.measurement.throughput) for t in runs if t.measurement is not None
    ]
    return Comparison(
        config=config,
        effect=Effect.TRAINING if study.space is None else study.space.effect(config),
        speedup=ratio_of_log(log, half, sum(t.stage in _SCREENING for t in runs)),
        logs={},
        loss=_UNJUDGED,
        throughput=mean_rate(windows, rate_unit(study)),
        peak_bytes=largest_peak_bytes(study, config),
        trial=runs[0].number,
    )


def _alike(study: Study, *stages: Stage) -> dict[Config, list[float]]:
    """Return config -> ln rates of its undisturbed runs in these stages (default: all)."""
    found: dict[Config, list[float]] = {}
    for trial in undisturbed(study, in_own_unit(study, study.finished(*stages))):
        rate = amortised(study, trial.measurement) if trial.measurement is not None else 0.0
        if rate > 0.0:
            found.setdefault(trial.config, []).append(math.log(rate))
    return found


def _runs(study: Study, config: Config) -> list[Trial]:
    return [t for t in in_own_unit(study, study.of(config)) if t.measurement is not None]


def _is_settled(study: Study, reading: _Reading, bar: float) -> bool:
    """Return whether a candidate has its verdict: too small a gain, or ruled out."""
    c = reading.compared
    if not _may_be_picked(study, c):
        return True
    if not reading.in_pairs:
        return False
    speedup = c.speedup
    if speedup.high < WORTH_HAVING:
        return True
    if speedup.n < FEWEST_PAIRS:
        return False
    if speedup.low <= 1.0:
        return speedup.value < HARDLY_FASTER
    return speedup.low > bar and not saves(study, c)


def _may_be_picked(study: Study, c: Comparison) -> bool:
    """Return whether a candidate is not ruled out for good.

    An unclear loss counts as passed: too few values are no evidence that nothing is faster.
    """
    loss = c.loss
    if loss.verdict == "unclear" and not loss.rule and loss_traces(study, _BASE):
        c = replace(c, loss=replace(loss, verdict="pass"))
    return is_eligible(study, c)


def _likely(study: Study, waiting: Sequence[_Reading]) -> Comparison | None:
    """Return the candidate with the best ratio minus one standard error; None if none is above 1."""
    top = max(waiting, key=lambda r: (r.cautious, -len(r.compared.config)), default=None)
    if top is None or top.cautious <= 0.0:
        return None
    c = top.compared
    if top.in_pairs:
        return c
    return replace(c, loss=by_rule(study, c.config, loss_verdict(study, c.config)))


# -- text -----------------------------------------------------------------------------------------


def _unsettled(
    study: Study,
    missing: Sequence[str],
    likely: Comparison | None,
    runs: int,
    bar: float,
    *,
    is_noisy: bool,
) -> list[str]:
    texts: list[str] = []
    if likely is not None:
        reads = f"{likely.config.text()} reads {candidate_text(likely.speedup, runs)}"
        texts.append(
            f"{reads}: {why_not(study, likely, bar)}." if likely.wins and likely.logs else f"{reads}."
        )
    if is_noisy or (likely is not None and likely.speedup.n > 1 and not likely.speedup.is_bounded):
        text = too_noisy_text(study)
        texts.append(f"{text[0].upper()}{text[1:]}.")
    if missing:
        texts.append(f"Not measured yet: {', '.join(missing)}.")
    return texts or ["A candidate with a faster reading was compared in too few pairs."]


def _resume(study: Study, missing: Sequence[str], likely: Comparison | None) -> str:
    """Return the command that continues, with time for the missing families and the likely candidate.

    Returns:
        An empty string if `autotune resume` would refuse the study.
    """
    if study.stopped == SCRIPT_CHANGED or study.spec.purpose == VERIFY:
        return ""
    pairs = FURTHER_PAIRS
    if likely is not None and likely.wanted_pairs is not None:
        pairs = max(pairs, likely.wanted_pairs - likely.speedup.n)
    base_s = _run_s(baseline_runs(study))
    all_s = max(base_s, _run_s([t for t in study.finished() if t.measurement is not None]))
    likely_s = all_s if likely is None else _run_s(_runs(study, likely.config))
    required_s = _SPARE * (len(missing) * all_s + pairs * (base_s + likely_s)) + _ENDING_S
    command = f"autotune resume {study.spec.label}"
    budget = study.spec.budget
    is_cut = study.stopped in ("interrupted", "signal") and budget.trials is None
    if is_cut and budget.seconds - study.elapsed_s >= required_s:
        return command
    command += f" --budget {math.ceil(required_s / 60.0)}m"
    if budget.trials is not None:
        command += f" --trials {len(missing) + 2 * pairs}"
    return command


def _run_s(trials: Sequence[Trial]) -> float:
    """Return the median duration of these runs in seconds; a first run on a cold machine takes longer."""
    return statistics.median([t.own_s for t in trials]) if trials else 0.0
