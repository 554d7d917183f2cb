"""Value classes of a study's answer. Pure; standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate


class SearchOutcome(Enum):
    """The outcome of a search; `autotune.answer.outcome` has the rule."""

    FASTER = "faster"
    NOTHING_FASTER = "nothing_faster"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One pick.

    Args:
        pick: ``safe``, ``best`` or ``fastest``; ``likely`` for a candidate that is not confirmed.
        config: Changes relative to the script; empty for the baseline.
        trial: Number of a trial that measured it.
        effect: Strictest effect among its changes.
        speedup: Ratio to the baseline from confirmation pairs alone; n = pairs. 1.0 for the baseline itself.
            For a ``likely`` pick with fewer than two pairs: from screening runs; n = runs.
        throughput: Mean of its confirmation runs.
        peak_bytes: Largest peak memory of its runs, None if unknown.
        loss: Verdict of the loss guard.
        compile_s: Cold compile time, 0 without compilation.
        break_even_steps: Steps after which a cold compile is paid back; None if it costs nothing or never
            pays back.
        pays_back_s: The same in seconds from the start of training, compile time included.
        run_s: Duration of the planned run with the unchanged script; None if its length is unknown.
        over_run: Speedup of the whole planned run from an empty compile cache; None if its length is
            unknown or nothing is compiled.
        reasons: Whole sentences.
        advice: Suggested learning rate; empty with the script's own effective batch.
        runs: Measured runs of a ``likely`` pick, in all stages; 0 for other picks.
    """

    pick: str
    config: Config
    trial: int
    effect: Effect
    speedup: Estimate
    throughput: Estimate
    peak_bytes: int | None
    loss: LossVerdict
    compile_s: float = 0.0
    break_even_steps: int | None = None
    pays_back_s: float | None = None
    run_s: float | None = None
    over_run: float | None = None
    reasons: tuple[str, ...] = ()
    advice: str = ""
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMember:
    """A config that no other config dominates in throughput, peak memory and loss beyond noise.

    Args:
        is_disturbed: Other processes used the machine during each of its runs.
    """

    trial: int
    config: Config
    throughput: float
    peak_bytes: int | None
    loss: float | None
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a study.

    Args:
        is_better: `best` beats the baseline: its lower bound is above 1.00, it passed the loss guard, and
            the A/A control does not exclude 1.00.
        baseline_throughput: Of the unchanged script.
        baseline_peak_bytes: Peak memory of the unchanged script.
        safe, best: The baseline itself if no config beats it.
        fastest: None unless it beats `best`.
        identical: The A/A control, baseline against baseline; None with too few runs.
        front: Pareto front, fastest first.
        failures: Failure label -> count.
        sentence: One-line summary.
        caveats: Whole sentences: weaknesses of the claim, and goals that were not reached.
        outcome: Faster, nothing faster, or inconclusive.
        likely: Best candidate of an inconclusive search; None if none was faster.
        unsettled: Reasons why the search is inconclusive, as whole sentences.
        resume: Command that continues an inconclusive search; empty if it cannot be continued.
    """

    is_better: bool
    baseline_throughput: Estimate
    baseline_peak_bytes: int | None
    safe: Recommendation
    best: Recommendation
    fastest: Recommendation | None
    identical: Estimate | None
    front: tuple[FrontMember, ...]
    failures: dict[str, int]
    sentence: str
    caveats: tuple[str, ...] = ()
    outcome: SearchOutcome = SearchOutcome.INCONCLUSIVE
    likely: Recommendation | None = None
    unsettled: tuple[str, ...] = ()
    resume: str = ""
