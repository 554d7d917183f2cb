"""Does a config keep the baseline's loss? Pure; standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict:
    """A judgement with its evidence.

    Args:
        level: 0 finite and not diverging; 1 non-inferior to the baseline on the same samples, or
            by distribution; 2 time to equal loss.
        verdict: ``pass``, ``fail``, or ``unclear`` (too few data to tell; bars like a failure).
        delta: Mean loss difference to the baseline over the judged part, positive = worse.
        margin: What the script's own noise allows, in units of loss.
        steps: Steps the judgement rests on.
        delay_frac_upper95: Upper bound of the delay as a share of the steps run.
        noise_frac: The margin in the same unit.
        paired: Judged on the same samples; False: by distribution over seeds.
        reason: A sentence.
    """

    level: int
    verdict: str
    delta: float = 0.0
    margin: float = 0.0
    steps: int = 0
    delay_frac_upper95: float = 0.0
    noise_frac: float = 0.0
    paired: bool = True
    reason: str = ""

    @property
    def passed(self) -> bool:
        """The config may be recommended as far as the loss goes."""
        return self.verdict == "pass"
