"""Challengers: configs that deserve confirmation given the confirmation runs so far; pure.

The first finalists are chosen by single screening runs. Confirmation and ablation then measure them better: a
lucky leader falls back, and part of a winner may be faster than the whole. The config that is likely fastest
by then gets pairs of its own while time is left.
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
"""Least expected gain of the recommendation, in ln rate, for which a challenger is confirmed."""

_PAIRS = 5
"""Pairs that have to fit the remaining budget before a challenger starts."""

_MOST = 2
"""Challengers per search: each uses part of the family-wise error rate."""

_BELIEFS: IdentityCache[_Belief | None] = IdentityCache(size=4)


@dataclass(frozen=True, slots=True)
class _Belief:
    """Throughput estimate from all runs so far, each with the noise of a single run of a config."""

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
        """Return the expected ln ratio to the script's rate."""
        return self.process.predict(self.model.point(config))[0]

    def gain(self, config: Config, over: Config) -> float:
        """Return the expected gain, in ln rate, of the faster of two configs over `over`."""
        mean, sd = self.process.difference(self.model.point(config), self.model.point(over))
        return expected_gain(mean, sd)


def foremost(study: Study, members: Sequence[Config], parts: FeatureFlags) -> tuple[Config, ...]:
    """Return the members, led by the training-preserving one that is fastest by all runs so far."""
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
    """Return the challenger to confirm beside these members.

    Challengers enter one at a time, after every current member has three pairs. The result depends on
    completed rounds only, so it is constant within a round.

    Args:
        before: The study without the cycle under way.
        members: Configs in confirmation now.
        out: Configs that may not enter: ruled out or broken.
        parts: Enabled features of the planner.

    Returns:
        None if no config is worth it or the time is too short.
    """
    finished = before.finished(Stage.CONFIRM)
    runs, last = Counter(t.config for t in finished), max((t.group for t in finished), default=0)
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
    # A claim on a part of a winner rests on the winner's; any other config would use its error rate.
    others = [c for c in others if whole is None or is_part(before, c, whole)]
    others = [c for c in others if may_win(before, c) and _has_time(before, [best, c], costs)]
    gains = [(belief.gain(c, best), c) for c in others]
    gain, found = max(gains, key=lambda g: (g[0], g[1].canonical()), default=(0.0, None))
    return found if gain >= _WORTH else None


def _latecomers(study: Study) -> int:
    """Return the number of configs that entered after the first complete round."""
    runs = [t for t in study.finished(Stage.CONFIRM) if (t.stage, t.group) not in study.cut]
    runs = [t for t in runs if not t.config.is_baseline]
    first = min((t.group for t in runs), default=0)
    return len({t.config for t in runs} - {t.config for t in runs if t.group == first})


def _is_training_preserving(study: Study, config: Config) -> bool:
    return study.space is not None and study.space.effect(config) is not Effect.TRAINING


def _has_time(before: Study, members: Sequence[Config], costs: Costs) -> bool:
    """Return whether five rounds of the script and these members fit the time left since the last run."""
    limit = before.spec.budget.trials
    has_trials = limit is None or limit - len(before.trials) >= _PAIRS * (1 + len(members))
    left_s = before.spec.budget.seconds - max((t.finished_s for t in before.finished()), default=0.0)
    members = [c for c in members if not c.is_baseline]
    return has_trials and _PAIRS * costs.cycle(members) <= left_s
