"""Verification that one config is faster than the script here: pairs of fresh runs until settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.comparison import compare
from autotune.compare.control import claim_bar, control
from autotune.compare.failed_configs import broken
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import FailureKind, Proposal, Stage
from autotune.search.costs import Costs
from autotune.search.strategy import Strategy

if TYPE_CHECKING:
    from autotune.compare.comparison import Comparison
    from autotune.model.study import Study

_BASE = Config()
_BASELINES = 2
_FEWEST_PAIRS = 3
"""Pairs that a verdict needs: no screening run of the config adds to the evidence of two pairs."""
_LOOKS = (3, 5)
"""Pairs after which the interval is analysed, besides the last. It allows for four analyses, one of which is
the end of the budget."""
_NARROW = 0.04
"""Relative width of an interval that settles that there is no relevant difference."""


class Verification(Strategy):
    """Two runs of the unchanged script, then pairs of script and config in alternating order.

    The script's first two runs, of two seeds, calibrate the loss guard and belong to no pair.

    Args:
        config: Config to verify.
        most_pairs: Maximum number of pairs.
        at_least: Ratio that the lower bound has to exceed.
    """

    def __init__(self, config: Config, *, most_pairs: int = 10, at_least: float = 1.0) -> None:
        self._config = config
        self._most_pairs = most_pairs
        self._at_least = at_least

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """See `Strategy.ask`."""
        if study.stopped or study.open_trials:
            return None
        costs = Costs.of(study)
        first = [t for t in study.trials if t.stage is Stage.BASELINE]
        if len(first) < _BASELINES and len(first) == len(study.trials):
            if first and first[0].measurement is None:
                return None
            return self._proposal(study, Stage.BASELINE, _BASE, len(first), 0, costs, remaining_s)
        if not any(t.measurement for t in study.baseline):
            return None
        return self._pair(study, costs, remaining_s)

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """See `Strategy.is_finished`."""
        return not study.open_trials and self.ask(study, remaining_s) is None

    def verdict(self, study: Study) -> str:
        """Return ``faster``, ``slower``, ``worse`` (its loss is), ``failed`` or ``no_difference``."""
        return self._judged(study)[0]

    def because(self, study: Study) -> str:
        """Return the reason of ``no_difference``; empty with every other verdict.

        - ``too_few_pairs``: no conclusion.
        - ``lost_runs``: no conclusion, as runs failed for reasons outside the config.
        - ``script_failed``: a run of the unchanged script failed.
        - ``not_cleared``: the interval does not exceed the ratio.
        - ``unsteady``: the interval exceeds the ratio, but not the difference of the script from itself.
        - ``loss_unclear``: the interval exceeds the ratio, but the loss is not shown to keep up.
        """
        return self._judged(study)[1]

    def _judged(self, study: Study) -> tuple[str, str]:
        if any(t.failure and t.failure.kind is FailureKind.DIVERGED for t in study.of(self._config)):
            return "worse", ""
        failed = broken(study)
        if self._config in failed:
            return "failed", ""
        verdict, because = self._by_pairs(study)
        # Proven harm is reported; nothing else is claimed if the script itself fails.
        if _BASE in failed and verdict not in ("slower", "worse"):
            return "no_difference", "script_failed"
        return verdict, because

    def _by_pairs(self, study: Study) -> tuple[str, str]:
        found = self.comparison(study)
        if found is None or found.speedup.n < _FEWEST_PAIRS:
            return self._without_pairs(study)
        if found.loss.verdict == "fail":
            return "worse", ""
        low, high, bar = found.speedup.low, found.speedup.high, claim_bar(control(study))
        if high < 1.0:
            return ("slower", "") if high < 1.0 / bar else ("no_difference", "unsteady")
        if low <= max(1.0, self._at_least):
            return "no_difference", "not_cleared"
        if low <= bar:
            return "no_difference", "unsteady"
        # A config that changes the numbers has to be observed to keep the loss.
        is_judged = found.loss.passed or found.effect is Effect.EXACT
        return ("faster", "") if is_judged else ("no_difference", "loss_unclear")

    def _without_pairs(self, study: Study) -> tuple[str, str]:
        kinds = [(t.config, t.failure.kind) for t in study.finished(Stage.CONFIRM) if t.failure]
        if (self._config, FailureKind.CONFIG_REJECTED) in kinds:
            return "failed", ""
        is_lost = any(not kind.teaches for _, kind in kinds)
        return "no_difference", "lost_runs" if is_lost else "too_few_pairs"

    def comparison(self, study: Study) -> Comparison | None:
        """Return the comparison of the config with the script; None without a pair."""
        return next((c for c in compare(study) if c.config == self._config), None)

    def _pair(self, study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
        trials = [t for t in study.trials if t.stage is Stage.CONFIRM]
        group = max((t.group for t in trials), default=0)
        proposed = [t.config for t in trials if t.group == group]
        if any(t.failure and t.failure.kind.teaches for t in trials):
            return None
        if len(proposed) == 1:
            other = _BASE if proposed[0] == self._config else self._config
            if costs.confirming(other) > remaining_s:
                return None
            return self._proposal(study, Stage.CONFIRM, other, group + 1, group, costs, remaining_s)
        if group and self._settled(study, group):
            return None
        if costs.confirming(_BASE) + costs.confirming(self._config) > remaining_s:
            return None
        group += 1
        # An odd pair begins with the script, an even one with the config: drift cancels over two pairs.
        begins = _BASE if group % 2 else self._config
        return self._proposal(study, Stage.CONFIRM, begins, group + 1, group, costs, remaining_s)

    def _settled(self, study: Study, pairs: int) -> bool:
        found = self.comparison(study)
        if pairs >= self._most_pairs:
            return True
        if found is None or found.speedup.n < _FEWEST_PAIRS or pairs not in _LOOKS:
            return False
        speedup = found.speedup
        judged = found.loss.verdict != "unclear" or found.effect is Effect.EXACT
        if found.is_early and (speedup.high < 1.0 or (speedup.low > max(1.0, self._at_least) and judged)):
            return True
        if speedup.low > max(1.0, self._at_least) or speedup.high < 1.0:
            return False  # distinguished from 1 only at the level of the last analysis
        return speedup.high - speedup.low < _NARROW * speedup.value

    def _proposal(
        self,
        study: Study,
        stage: Stage,
        config: Config,
        seed: int,
        group: int,
        costs: Costs,
        remaining_s: float,
    ) -> Proposal:
        fidelity = costs.fidelity(stage, config, remaining_s=remaining_s, reserve_s=0.0)
        what = "Your unchanged script" if config.is_baseline else "The configuration"
        where = f", pair {group}" if group else ""
        return Proposal(
            stage=stage, config=config, fidelity=fidelity, reason=f"{what}{where}.", seed=seed, group=group
        )
