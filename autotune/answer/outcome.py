"""The outcome of a search: faster, nothing is faster, or inconclusive. Pure; standard library only.

"Nothing is faster" is a claim and needs evidence: every knob family that applies was measured, and no
candidate that read faster is left without a verdict. Without that evidence the search is inconclusive, and
the answer names its likely candidate and the command that continues.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autotune.answer.answer import SearchOutcome
from autotune.answer.eligibility import is_lawful, saves, why_not
from autotune.compare.alpha_spending import FEWEST_PAIRS
from autotune.compare.amortised_rate import amortised, baseline_runs, mean_rate, rate_unit
from autotune.compare.bounds import largest_peak_bytes
from autotune.compare.comparison import Comparison
from autotune.compare.disturbances import undisturbed
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.compare.loss_verdicts import by_rule, loss_traces, loss_verdict
from autotune.compare.rounds import in_own_unit
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.knob_families import FAMILIES, applicable, measured
from autotune.model.measurement import Estimate
from autotune.model.study import SCRIPT_CHANGED, VERIFY
from autotune.model.trial import Stage
from autotune.statistics.intervals import sd, t_quantile
from autotune.statistics.spread import run_spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.model.study import Study
    from autotune.model.trial import Trial

WORTH_HAVING: Final = 1.05
"""A gain below it decides nobody to change a script: a candidate whose interval ends below it is settled."""

HARDLY_FASTER: Final = 1.03
"""A candidate that reads less than this in enough pairs is settled if its interval contains 1."""

NOT_NOISE: Final = 1.10
"""A reading above it needs a verdict of its own, however much runs scatter."""

NOISY_SPREAD: Final = 0.10
"""Scatter of single runs, in ln rate, from which on a search that claims nothing cannot exclude a gain: two
standard errors of a single comparison are then 1.3 times and more."""

FURTHER_PAIRS: Final = 4
"""Pairs that a continuation has time for: one more than the fewest that a claim can rest on."""

_TWO_ERRORS: Final = 2.0
_FEWEST_IN_PAIRS: Final = 2
_SPARE: Final = 1.25
"""Share of time for start-up and scheduling between runs."""
_ENDING_S: Final = 30.0
"""Seconds for the end of a search: report, MLflow, clean-up."""
_SCREENING: Final = (Stage.BASELINE, Stage.START, Stage.REFINE, Stage.SENTINEL)
_UNJUDGED: Final = LossVerdict(level=0, verdict="unclear")
_BASE: Final = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What can be concluded from a study as of now.

    Args:
        outcome: Of the three.
        likely: The most likely candidate of an inconclusive search, None where nothing read faster.
        runs: Its measured runs.
        unsettled: Why the search is inconclusive, in whole sentences.
        resume: Command that continues the search; empty where it cannot be continued.
    """

    outcome: SearchOutcome
    likely: Comparison | None = None
    runs: int = 0
    unsettled: tuple[str, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A candidate that reads faster: by its pairs where there are two or more, else by screening runs.

    Args:
        compared: Of its pairs, or made from its screening runs.
        in_pairs: Which of the two.
        error: Standard error of its ln ratio.
    """

    compared: Comparison
    in_pairs: bool
    error: float

    @property
    def cautious(self) -> float:
        """Its ln ratio less one standard error."""
        return math.log(self.compared.speedup.value) - self.error


def conclude(
    study: Study,
    compared: Sequence[Comparison],
    *,
    is_better: bool,
    bar: float = 1.0,
    ruled_out: frozenset[str] = frozenset(),
) -> Conclusion:
    """The outcome of a study, and for an inconclusive one what is likely and how to continue.

    Args:
        study: As of now, with a measured baseline.
        compared: Of `autotune.compare.comparison.compare`.
        is_better: A gain is claimed.
        bar: Of `autotune.compare.control.claim_bar`.
        ruled_out: Families whose ceiling excludes a gain worth having.
    """
    if is_better:
        return Conclusion(outcome=SearchOutcome.FASTER)
    if not study.stopped:
        # A search asks for its answer before every run of its last stages; the evidence is not needed there.
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
    """``too noisy to tell (your script alone varied 74-350 samples/s)``."""
    rates = [t.measurement.throughput.value for t in baseline_runs(study) if t.measurement]
    if len(rates) < 2:
        return "too few runs to tell (your script alone was measured once)"
    low, high = _number(min(rates)), _number(max(rates))
    return f"too noisy to tell (your script alone varied {low}-{high} {rate_unit(study)})"


def candidate_text(likely: Estimate, runs: int) -> str:
    """``2.18x in 3 runs, not confirmed``: how a likely pick reads."""
    return f"{likely.value:.2f}x in {runs} {'run' if runs == 1 else 'runs'}, not confirmed"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# -- what is missing ------------------------------------------------------------------------------


def _missing(study: Study, ruled_out: frozenset[str]) -> list[str]:
    """Families that apply, may bring a gain, and were not measured, in the order of `FAMILIES`."""
    space = study.space
    if space is None:
        return []
    wanted = applicable(space) - ruled_out
    if not loss_traces(study, _BASE):
        # Without a loss nothing but an EXACT config can be recommended.
        wanted &= {d.family for d in space.free() if d.effect is Effect.EXACT}
    left = wanted - measured(study)
    return [family for family in FAMILIES if family in left]


# -- what read faster -----------------------------------------------------------------------------


def _faster(
    study: Study, compared: Sequence[Comparison], alike: Mapping[Config, Sequence[float]]
) -> list[_Reading]:
    """Candidates that keep the training, may be recommended, and read faster than the script.

    By pairs that is any reading above 1. By screening runs it is one beyond their noise, or one so large that
    noise is no verdict.

    Args:
        study: As of now.
        compared: Of `autotune.compare.comparison.compare`.
        alike: Of `_alike`, for runs of every stage.
    """
    space, failed = study.space, broken(study)
    if space is None:
        return []
    spread, screening = run_spread(alike.values()), _alike(study, *_SCREENING)
    own = alike.get(_BASE, [])  # of pairs as well, as the mean that is shown beside it
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
    """A comparison from screening runs; its interval is as wide as the scatter of all repeated runs says.

    Args:
        study: As of now.
        config: Of which a run was measured.
        log: Its ln ratio to the script.
        error: Standard error of that.
        alike: Of `_alike`, for runs of every stage.
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
        speedup=Estimate(
            value=math.exp(log),
            low=math.exp(log - half),
            high=math.exp(log + half),
            n=sum(t.stage in _SCREENING for t in runs),
            unit="ratio",
        ),
        logs={},
        loss=_UNJUDGED,
        throughput=mean_rate(windows, rate_unit(study)),
        peak_bytes=largest_peak_bytes(study, config),
        trial=runs[0].number,
    )


def _alike(study: Study, *stages: Stage) -> dict[Config, list[float]]:
    """Config -> ln rates of its undisturbed runs of these stages; of all that count without any."""
    found: dict[Config, list[float]] = {}
    for trial in undisturbed(study, in_own_unit(study, study.told(*stages))):
        rate = amortised(study, trial.measurement) if trial.measurement is not None else 0.0
        if rate > 0.0:
            found.setdefault(trial.config, []).append(math.log(rate))
    return found


def _runs(study: Study, config: Config) -> list[Trial]:
    return [t for t in in_own_unit(study, study.of(config)) if t.measurement is not None]


def _is_settled(study: Study, reading: _Reading, bar: float) -> bool:
    """Whether a candidate has its verdict: no gain worth having, or not allowed to be recommended."""
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
    """Nothing seen so far bars it for good.

    A loss that is not clear yet counts as one that holds: too few values to compare are no evidence that
    nothing is faster. A script whose loss is never seen has none to clear.
    """
    loss = c.loss
    if loss.verdict == "unclear" and not loss.rule and loss_traces(study, _BASE):
        c = replace(c, loss=replace(loss, verdict="pass"))
    return is_lawful(study, c)


def _likely(study: Study, waiting: Sequence[_Reading]) -> Comparison | None:
    """The candidate that is fastest even one standard error below its reading; None without one."""
    top = max(waiting, key=lambda r: (r.cautious, -len(r.compared.config)), default=None)
    if top is None or top.cautious <= 0.0:
        return None
    c = top.compared
    if top.in_pairs:
        return c
    return replace(c, loss=by_rule(study, c.config, loss_verdict(study, c.config)))


# -- in words -------------------------------------------------------------------------------------


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
    """The command, with time for the missing families and for pairs of the likely candidate.

    Empty for a search that `autotune resume` refuses.
    """
    if study.stopped == SCRIPT_CHANGED or study.spec.purpose == VERIFY:
        return ""
    pairs = FURTHER_PAIRS
    if likely is not None and likely.wanted_pairs is not None:
        pairs = max(pairs, likely.wanted_pairs - likely.speedup.n)
    base_s = _run_s(baseline_runs(study))
    all_s = max(base_s, _run_s([t for t in study.told() if t.measurement is not None]))
    likely_s = all_s if likely is None else _run_s(_runs(study, likely.config))
    wanted_s = _SPARE * (len(missing) * all_s + pairs * (base_s + likely_s)) + _ENDING_S
    command = f"autotune resume {study.spec.label}"
    budget = study.spec.budget
    is_cut = study.stopped in ("interrupted", "signal") and budget.trials is None
    if is_cut and budget.seconds - study.elapsed_s >= wanted_s:
        return command
    command += f" --budget {math.ceil(wanted_s / 60.0)}m"
    if budget.trials is not None:
        command += f" --trials {len(missing) + 2 * pairs}"
    return command


def _run_s(trials: Sequence[Trial]) -> float:
    """Seconds of a run; the median, as a first run on a cold machine takes longer than those that follow."""
    return statistics.median([t.own_s for t in trials]) if trials else 0.0
