"""Who deserves confirmation by what confirmation itself has shown; pure.

Who is confirmed first is chosen by single runs of screening. Confirmation and ablation then tell what these
were worth: a leader that was lucky falls back, and part of a winner may be faster than the whole. Whoever is
held for the fastest by then, or may well be, gets pairs of its own while there is time for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.ablation import ablated, is_part
from autotune.compare.alpha_spending import LOOK_PAIRS
from autotune.compare.finalists import may_win
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.identity_cache import IdentityCache, study_key
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.search.costs import Costs
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.replicates import run_sd
from autotune.search.trial_limit import CYCLES
from autotune.statistics.intervals import expected_gain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.model.study import Study
    from autotune.search.feature_flags import FeatureFlags
    from autotune.search.models.linear import GaussianProcess

_BASE = Config()
_WORTH = 0.01
"""In ln rate: what the recommendation has to gain by it for a newcomer to be confirmed."""

_PAIRS = 5
"""A newcomer has time for so many before the budget ends, or does not begin."""

_MOST = 2
"""Newcomers in a search: each takes its part of the chance of a false win."""

_BELIEFS: IdentityCache[_Belief | None] = IdentityCache(size=4)


@dataclass(frozen=True, slots=True)
class _Belief:
    """What somebody makes of all runs so far who takes each for as uncertain as runs of one config differ."""

    model: ThroughputModel
    process: GaussianProcess

    @classmethod
    def of(cls, study: Study, parts: FeatureFlags) -> _Belief | None:
        key = study_key(study, parts.expects)
        return _BELIEFS.get(key, lambda: cls._formed(study, parts))

    @classmethod
    def _formed(cls, study: Study, parts: FeatureFlags) -> _Belief | None:
        if study.space is None:
            return None
        model = ThroughputModel.of(study, study.space, expects=parts.expects, in_cycles=True)
        return None if model is None else cls(model, model.doubting(run_sd(study, in_cycles=True)))

    def expected(self, config: Config) -> float:
        """Ln ratio to the script's rate."""
        return self.process.predict(self.model.point(config))[0]

    def gain(self, config: Config, over: Config) -> float:
        """In ln rate, by which the better of the two is expected to be faster than the second of them."""
        mean, sd = self.process.difference(self.model.point(config), self.model.point(over))
        return expected_gain(mean, sd)


def foremost(study: Study, members: Sequence[Config], parts: FeatureFlags) -> tuple[Config, ...]:
    """The same, first whoever all runs so far hold for the fastest that leaves the training unchanged."""
    training_preserving = [c for c in members if _is_training_preserving(study, c)]
    if len(training_preserving) < 2 or study.spec.objective == ENERGY:
        return tuple(members)
    belief = _Belief.of(study, parts)
    if belief is None:
        return tuple(members)
    first = max(training_preserving, key=lambda c: (belief.expected(c), c.canonical()))
    return (first, *(c for c in members if c != first))


def newcomer(
    before: Study, members: Sequence[Config], out: Collection[Config], parts: FeatureFlags
) -> Config | None:
    """Who is worth confirming beside these, None where nobody is, or there is no time for it.

    One at a time: not before those that are there have three pairs. Hangs on the cycles before alone, so that
    it answers alike throughout a cycle.

    Args:
        before: The study without the cycle under way.
        members: Who is confirmed by now.
        out: Who may not come in: ruled out, or broken.
        parts: What of the planner takes part.
    """
    told = before.told(Stage.CONFIRM)
    runs, last = Counter(t.config for t in told), max((t.group for t in told), default=0)
    training_preserving = [c for c in members if _is_training_preserving(before, c)]
    if before.spec.objective == ENERGY or not training_preserving or any(runs[c] < CYCLES for c in members):
        return None
    if last >= LOOK_PAIRS[-1] or _latecomers(before) >= _MOST:
        return None
    belief = _Belief.of(before, parts)
    if belief is None:
        return None
    best = max((*training_preserving, _BASE), key=lambda c: (belief.expected(c), c.canonical()))
    whole, costs = ablated(before), Costs.of(before)
    lost = {*members, *out}
    others = [c for c in belief.model.seen if c and c not in lost and _is_training_preserving(before, c)]
    # A claim on a part of a winner rests on the winner's; anybody else would take of the winner's chance.
    others = [c for c in others if whole is None or is_part(before, c, whole)]
    others = [c for c in others if may_win(before, c) and _has_time(before, [best, c], costs)]
    gains = [(belief.gain(c, best), c) for c in others]
    gain, found = max(gains, key=lambda g: (g[0], g[1].canonical()), default=(0.0, None))
    return found if gain >= _WORTH else None


def _latecomers(study: Study) -> int:
    """How many came in after the first whole cycle, for whatever reason."""
    runs = [t for t in study.told(Stage.CONFIRM) if (t.stage, t.group) not in study.cut]
    runs = [t for t in runs if not t.config.is_baseline]
    first = min((t.group for t in runs), default=0)
    return len({t.config for t in runs} - {t.config for t in runs if t.group == first})


def _is_training_preserving(study: Study, config: Config) -> bool:
    return study.space is not None and study.space.effect(config) is not Effect.TRAINING


def _has_time(before: Study, members: Sequence[Config], costs: Costs) -> bool:
    """Five cycles of the script and these fit into what is left since the last run."""
    limit = before.spec.budget.trials
    has_trials = limit is None or limit - len(before.trials) >= _PAIRS * (1 + len(members))
    left_s = before.spec.budget.seconds - max((t.finished_s for t in before.told()), default=0.0)
    members = [c for c in members if not c.is_baseline]
    return has_trials and _PAIRS * costs.cycle(members) <= left_s
