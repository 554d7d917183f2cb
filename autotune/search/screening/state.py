"""The state of a search at one moment: all that the choice of the next config looks at; pure."""

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
"""In ln rate: a gain below it does not count as one."""

_LEAST_HOPE = 0.02
_DOMINATED = 0.8
_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A config that is worth a run.

    Args:
        config: Complete, of the study's space.
        reason: A sentence for people.
    """

    config: Config
    reason: str


@dataclass(frozen=True, slots=True)
class SearchState:
    """What every stage looks at, derived from the study once per question; built by `SearchState.of`.

    Args:
        study: As of now.
        space: Of the study, less what its ceilings rule out.
        remaining_s: Budget left, in seconds of wall time.
        costs: Seconds that runs take.
        feasible: What may be tried, and how likely it runs.
        model: Of throughput, in ln rate over the baseline, told by earlier studies as well.
        own: The same without what earlier studies tell; without any it is that very one.
        reserve_s: Seconds of wall time that confirmation needs.
        trials: Number of trials so far, open ones included.
        shown_steps: Optimizer steps over which the script's own runs showed its loss.
        parts: What of the planner takes part.
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
        """Read the study; None where no throughput was measured to compare by, or no knob can be varied."""
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
            # Who is confirmed beside the first only to be told apart from it gets what is left over.
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
        """The initial design is left behind."""
        return any(t.stage is Stage.REFINE for t in self.study.trials)

    @property
    def has_spent_trials(self) -> bool:
        """Of a limited number of trials those left are what confirmation takes."""
        limit = self.study.spec.budget.trials
        return limit is not None and (self.trials >= self.screening_trials(limit) or self.trials >= limit)

    def screening_trials(self, limit: int) -> int:
        """Trials that a limit leaves when confirmation has what it needs."""
        return left_for_screening(limit, len(find_leaders(self.study, self.own, parts=self.parts)))

    def may_try(self, config: Config) -> bool:
        """It is permitted, likely to run, not asked for yet, and affordable."""
        return self.permitted(config) and self.feasible.allows(config) and self.affordable(config)

    def affordable(self, config: Config) -> bool:
        """It fits into what confirmation does not need, its own part in it included."""
        screening_s = self.costs.screening(config)
        if screening_s > self.spare_s or not self.costs.fits(screening_s, self.remaining_s):
            return False
        compile_s = self.costs.cold_compile(config)
        return compile_s <= 0.5 * self.spare_s or compile_s <= 0.05 * self.study.spec.budget.seconds

    def hopeful(self, config: Config) -> bool:
        """The waits seen so far leave room for a gain over the baseline."""
        return self.model.roof(config) > _LEAST_HOPE

    def plausible(self, config: Config) -> bool:
        """By the model it may yet be the fastest, though it need not be likely."""
        if not self.parts.expects:
            return True
        mean, sd = self.model.predict(config)
        return mean + _DOUBT * sd > self.best_training_preserving()

    def conceivable(self, config: Config) -> bool:
        """By what was known before anything was tried it may be faster than the unchanged script."""
        mean, sd = self.model.foreseen(config)
        return mean + _DOUBT * sd > 0.0

    def training_preserving(self, config: Config) -> bool:
        """It leaves the training unchanged, as far as runs of a search can show that."""
        if self.space.effect(config) is Effect.TRAINING:
            return False
        return not self.refused(config)

    def refused(self, config: Config) -> bool:
        """A rule keeps it from being recommended, whatever it reads."""
        return barred(self.study, config, self.shown_steps) is not None

    def permitted(self, config: Config) -> bool:
        """Under a kept effective batch only what the user allowed by name may change the training."""
        if self.study.spec.effective_batch != "keep" or self.training_preserving(config):
            return True
        allowed, dimensions = self.study.spec.space.allowed, self.space.dimensions
        wild = [k for k in config if k in dimensions and dimensions[k].effect is Effect.TRAINING]
        return all(knob in allowed for knob in wild)

    def best_training_preserving(self) -> float:
        """The best that leaves the training unchanged, as ln(rate / baseline rate); 0 if there is none."""
        known = self.model.seen
        seen = [c for c in known if self.training_preserving(c)]
        if not self.parts.second_looks:
            return max((known[c] for c in seen), default=0.0)
        return self.model.predict(leading(self.model, seen))[0] if seen else 0.0

    def proposal(self, stage: Stage, suggestion: Suggestion | None) -> Proposal | None:
        """A suggestion as a trial of this stage; None without one."""
        if suggestion is None:
            return None
        config = suggestion.config
        fidelity = self.costs.fidelity(stage, config, remaining_s=self.remaining_s, reserve_s=self.reserve_s)
        # Every ratio rests on the script's own runs, and a slow run may take the least energy.
        if not config.is_baseline and self.study.spec.objective != ENERGY:
            fidelity = replace(fidelity, dominated_below=_DOMINATED * self._fastest_seen(config))
        return Proposal(stage=stage, config=config, fidelity=fidelity, reason=suggestion.reason)

    def _fastest_seen(self, config: Config) -> float:
        """The highest throughput that a run of its kind surely had, in samples/s; 0 where none are known.

        What changes the training competes for another pick, so it is no bar to what leaves it as it is.
        """
        told = [t for t in self.study.told() if t.measurement is not None]
        if self.training_preserving(config):
            told = [t for t in told if self.training_preserving(t.config)]
        rates = [t.measurement.throughput for t in told if t.measurement is not None]
        return max((rate.low for rate in rates if rate.unit == "samples/s"), default=0.0)
