"""What a study answers: values alone, which any part of the program may hold. Pure; standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate


class SearchOutcome(Enum):
    """What a search found; `autotune.answer.outcome` has the rule."""

    FASTER = "faster"
    NOTHING_FASTER = "nothing_faster"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One pick.

    Args:
        pick: ``safe``, ``best`` or ``fastest``; ``likely`` for a candidate that is not confirmed.
        config: Changes relative to the script; empty where nothing beats the baseline.
        trial: Number of a trial that measured it (the baseline's where nothing is changed).
        effect: Strictest effect among its changes.
        speedup: Ratio to the baseline from confirmation pairs alone; n = pairs. 1.0 for the
            baseline itself. Of a ``likely`` pick with fewer than two pairs from screening runs; n = runs.
        throughput: Of this config, over its confirmation runs.
        peak_bytes: Largest peak seen for it, None where unknown.
        loss: The guard's verdict.
        compile_s: Cold compile time, 0 where it does not compile.
        break_even_steps: Steps after which a cold compile has paid back, None where it never
            costs anything.
        pays_back_s: The same in seconds from the start of training, the compile included.
        run_s: What the planned run takes with the unchanged script; None where its length is not known.
        over_run: How many times as fast the planned run is as a whole, from an empty compile cache; None
            where its length is not known or nothing is compiled.
        reasons: Whole sentences.
        advice: What its learning rate might have to be; empty with the script's own effective batch.
        runs: Measured runs of a ``likely`` pick, of every stage; 0 for the others.
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
    """A config that no other dominates in throughput, peak memory and loss by more than noise.

    Args:
        is_disturbed: Others used the machine beside every run of it.
    """

    trial: int
    config: Config
    throughput: float
    peak_bytes: int | None
    loss: float | None
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a study answers.

    Args:
        is_better: `best` beats the baseline: its lower bound is above 1.00, loss guard passed,
            and the A/A control does not exclude 1.00.
        baseline_throughput: Of the unchanged script.
        baseline_peak_bytes: Its peak memory.
        safe, best: Always there; the baseline itself where nothing beats it.
        fastest: Only where it beats `best`.
        identical: The A/A control: baseline against baseline, None with too few runs.
        front: Pareto front, fastest first.
        failures: Failure label -> count.
        sentence: One line that says it all.
        caveats: Whole sentences: what weakens the claim, what was not reached.
        outcome: Whether something is faster, nothing is, or the search cannot say.
        likely: The best candidate of an inconclusive search; None where nothing read faster.
        unsettled: Why the search is inconclusive, in whole sentences.
        resume: Command that continues an inconclusive search; empty where it cannot be continued.
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
