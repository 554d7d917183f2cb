"""The state of a search at one moment, used to choose the next config; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.answer.ceilings import hopeless
from autotune.compare.loss_verdicts import trace_steps
from autotune.compare.transfer import beliefs
from autotune.loss.delayed_harm_rules import barred
from autotune.model.effect import Effect
from autotune.model.knob_families import without
from autotune.model.objective import ENERGY
from autotune.model.trial import Proposal, Stage
from autotune.search.costs import Costs
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.feasible import Feasible
from autotune.search.screening.replicates import leading
from autotune.search.screening.shortlist import find_leaders
from autotune.search.trial_limit import left_for_screening

if TYPE_CHECKING:
    from autotune.model.config import Config
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study
    from autotune.search.feature_flags import FeatureFlags

HELPS = 0.01
"""Least gain that counts as one, in ln rate."""

_LEAST_HOPE = 0.02
_DOMINATED = 0.8
_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A config that is worth a run.

    Args:
        config: Complete config of the study's space.
        reason: Explanation for users, as a sentence.
    """

    config: Config
    reason: str


@dataclass(frozen=True, slots=True)
class SearchState:
    """State used by every stage, derived from the study for each proposal; built by `SearchState.of`.

    Args:
        study: Current study.
        space: Space of the study, without values excluded by its ceilings.
        remaining_s: Budget left, in seconds of wall time.
        costs: Costs of runs in seconds.
        feasible: Feasibility of configs.
        model: Throughput model, in ln rate over the baseline, with results of earlier studies.
        own: The same without earlier studies; identical to `model` if there are none.
        reserve_s: Seconds of wall time that confirmation needs.
        trials: Number of trials so far, open ones included.
        shown_steps: Optimizer steps over which the script's own runs reported its loss.
        parts: Enabled features of the planner.
    """

    study: Study
    space: SearchSpace
    remaining_s: float
    costs: Costs
    feasible: Feasible
    model: ThroughputModel
    own: ThroughputModel
    reserve_s: float
    trials: int
    shown_steps: int
    parts: FeatureFlags

    @classmethod
    def of(
        cls, study: Study, space: SearchSpace, remaining_s: float, parts: FeatureFlags
    ) -> SearchState | None:
        """Read the study; None without a measured baseline or a knob that can vary."""
        own = ThroughputModel.of(study, space, expects=parts.expects)
        if own is None or not space.free():
            return None
        if parts.ceilings:
            space = without(space, hopeless(study))
        costs, model = Costs.of(study), own
        confirmed = frozenset(t.config for t in study.trials if t.stage is Stage.CONFIRM)
        leaders = find_leaders(study, own, out=confirmed, parts=parts)
        if beliefs(study).first:
            model = ThroughputModel.of(study, space, informed=True, expects=parts.expects) or own
        pending = [t.config for t in study.open_trials if t.config not in own.seen]
        if pending and parts.believes_pending:
            believed = own.believing(pending)
            own, model = believed, believed if model is own else model.believing(pending)
        return cls(
            study=study,
            space=space,
            remaining_s=remaining_s,
            costs=costs,
            feasible=Feasible.of(study, space, separates=parts.separates),
            model=model,
            own=own,
            # A config confirmed only to be compared with the first uses the time left over.
            reserve_s=costs.reserve(leaders, remaining_s),
            trials=len(study.trials),
            shown_steps=trace_steps(study),
            parts=parts,
        )

    @property
    def spare_s(self) -> float:
        """Seconds of wall time that confirmation leaves to screening."""
        return self.remaining_s - self.reserve_s

    @property
    def is_refining(self) -> bool:
        """Whether the initial design is finished."""
        return any(t.stage is Stage.REFINE for t in self.study.trials)

    @property
    def has_spent_trials(self) -> bool:
        """Whether the trials left under a limit are needed for confirmation."""
        limit = self.study.spec.budget.trials
        return limit is not None and (self.trials >= self.screening_trials(limit) or self.trials >= limit)

    def screening_trials(self, limit: int) -> int:
        """Return the trials that a limit leaves after those reserved for confirmation."""
        return left_for_screening(limit, len(find_leaders(self.study, self.own, parts=self.parts)))

    def may_try(self, config: Config) -> bool:
        """Return whether it is permitted, likely to run, new, and within budget."""
        return self.permitted(config) and self.feasible.allows(config) and self.affordable(config)

    def affordable(self, config: Config) -> bool:
        """Return whether it fits the time that confirmation, its own included, does not need."""
        screening_s = self.costs.screening(config)
        if screening_s > self.spare_s or not self.costs.fits(screening_s, self.remaining_s):
            return False
        compile_s = self.costs.cold_compile(config)
        return compile_s <= 0.5 * self.spare_s or compile_s <= 0.05 * self.study.spec.budget.seconds

    def hopeful(self, config: Config) -> bool:
        """Return whether the observed waits leave room for a gain over the baseline."""
        return self.model.roof(config) > _LEAST_HOPE

    def plausible(self, config: Config) -> bool:
        """Return whether it may be the fastest by the model, even if that is unlikely."""
        if not self.parts.expects:
            return True
        mean, sd = self.model.predict(config)
        return mean + _DOUBT * sd > self.best_training_preserving()

    def conceivable(self, config: Config) -> bool:
        """Return whether it may be faster than the unchanged script by prior knowledge."""
        mean, sd = self.model.foreseen(config)
        return mean + _DOUBT * sd > 0.0

    def training_preserving(self, config: Config) -> bool:
        """Return whether it leaves the training unchanged, as far as runs of a search can show that."""
        if self.space.effect(config) is Effect.TRAINING:
            return False
        return not self.refused(config)

    def refused(self, config: Config) -> bool:
        """Return whether a rule excludes it from recommendation regardless of its reading."""
        return barred(self.study, config, self.shown_steps) is not None

    def permitted(self, config: Config) -> bool:
        """Return whether it obeys a fixed effective batch: only values allowed by name change training."""
        if self.study.spec.effective_batch != "keep" or self.training_preserving(config):
            return True
        allowed, dimensions = self.study.spec.space.allowed, self.space.dimensions
        wild = [k for k in config if k in dimensions and dimensions[k].effect is Effect.TRAINING]
        return all(knob in allowed for knob in wild)

    def best_training_preserving(self) -> float:
        """Return the best training-preserving ln(rate / baseline rate); 0 if there is none."""
        known = self.model.seen
        seen = [c for c in known if self.training_preserving(c)]
        if not self.parts.second_looks:
            return max((known[c] for c in seen), default=0.0)
        return self.model.predict(leading(self.model, seen))[0] if seen else 0.0

    def proposal(self, stage: Stage, suggestion: Suggestion | None) -> Proposal | None:
        """Return a suggestion as a trial of this stage; None without one."""
        if suggestion is None:
            return None
        config = suggestion.config
        fidelity = self.costs.fidelity(stage, config, remaining_s=self.remaining_s, reserve_s=self.reserve_s)
        # Every ratio depends on the script's own runs, and a slow run may use the least energy.
        if not config.is_baseline and self.study.spec.objective != ENERGY:
            fidelity = replace(fidelity, dominated_below=_DOMINATED * self._fastest_seen(config))
        return Proposal(stage=stage, config=config, fidelity=fidelity, reason=suggestion.reason)

    def _fastest_seen(self, config: Config) -> float:
        """Return the highest certain throughput of its kind, in samples/s; 0 if none is known.

        Training-changing configs compete for another pick, so they set no limit for training-preserving ones.
        """
        measured = [t for t in self.study.finished() if t.measurement is not None]
        if self.training_preserving(config):
            measured = [t for t in measured if self.training_preserving(t.config)]
        rates = [t.measurement.throughput for t in measured if t.measurement is not None]
        return max((rate.low for rate in rates if rate.unit == "samples/s"), default=0.0)
