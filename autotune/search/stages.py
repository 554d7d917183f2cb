"""The search: baseline, start, refine, confirm. A pure function of the study.

Screening chooses, confirmation claims. Once a config reads faster than the baseline, its confirmation time is
reserved. If that no longer fits, or nothing is left to confirm, the time goes to other configs. A
confirmation round runs the baseline and every finalist once. The order is reversed in every second round, so
that machine drift affects all configs alike. Diagnosis comes last; a long budget reserves time for it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.compare.disturbances import only_disturbed
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import CEILINGS, Proposal, Stage
from autotune.search.confirmation.next_run import has_winner, is_confirming, next_confirmation
from autotune.search.costs import Costs
from autotune.search.diagnosis import reserved_s, spare_probe, without_communication
from autotune.search.feature_flags import DEFAULT, FeatureFlags
from autotune.search.screening.initial_design import next_start, start_is_over, uncovered
from autotune.search.screening.refinement import (
    for_front,
    left_for_training_changing_s,
    likeliest,
    random_draw,
    separating,
    simpler,
    training_changing,
)
from autotune.search.screening.replication import AGAIN, last_doubts, second_look
from autotune.search.screening.state import SearchState, Suggestion
from autotune.search.screening.stopping import PATIENCE, no_progress, on_its_own, too_dear, whole_patience
from autotune.search.strategy import Sampler, Strategy
from autotune.search.trial_limit import BASELINES, CYCLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.model.space import SearchSpace
    from autotune.model.study import Study

_BASE = Config()
_ATTEMPTS = 64
_TRAINING_EVERY = 4
_SAMPLER_EVERY = 3
_MOST_DISTURBED = 3
"""Runs of a config after which it is not repeated because of disturbances."""
_BASELINE_AFTER = 3
"""Runs of other configs after which the unchanged script runs once more."""
_LONGEST = 8.0
_SHORTEST_DEADLINE_S = 20.0
_SENTINEL_FROM_S = 900.0
_SENTINEL_EVERY = 12


class Staged(Strategy):
    """Search that proposes baseline, start, refine and confirmation trials in turn.

    Args:
        sampler: Sampler that alternates with the models while refining; None for the models alone.
        pure_sampler: The sampler replaces both start and refine. Repeats and configs that do not fit or never
            worked are still excluded.
        parts: Enabled features of the planner.
    """

    def __init__(
        self, sampler: Sampler | None = None, *, pure_sampler: bool = False, parts: FeatureFlags = DEFAULT
    ) -> None:
        self._sampler = sampler
        self._pure_sampler = pure_sampler
        self._parts = parts

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """See `Strategy.ask`."""
        if study.stopped or remaining_s <= 0:
            return None
        first = self._baseline(study, remaining_s)
        if first is not None or study.space is None or len(_measured_baselines(study)) == 0:
            return first
        costs = Costs.of(study)
        if not is_confirming(study):
            ceiling = without_communication(study, costs, remaining_s)
            if ceiling is not None:
                return ceiling
        reserved = reserved_s(study, costs, _BASE)
        if not is_confirming(study):
            proposal = self._screened(study, costs, remaining_s - reserved)
            if proposal is not None:
                return proposal
        proposal = next_confirmation(study, remaining_s - reserved, self._parts)
        if proposal is not None:
            return proposal
        if is_confirming(study) and not study.open_trials and not has_winner(study):
            # The finalists are settled or no longer fit: the rest of the budget tries others.
            proposal = self._screen(study, study.space, remaining_s - reserved)
            if proposal is not None:
                return proposal
        late = next_confirmation(study, remaining_s, self._parts) if reserved else None
        if late is not None and any(t.group == late.group for t in study.trials if t.stage is late.stage):
            return late  # the other half of a pair that has started
        return spare_probe(study, costs, remaining_s) or late

    def _screened(self, study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
        assert study.space is not None
        proposal = self._screen(study, study.space, remaining_s)
        again = self._baseline_again(study, costs, remaining_s, is_last=proposal is None)
        return again or proposal

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """See `Strategy.is_finished`."""
        if study.open_trials:
            return False
        return self.ask(study, remaining_s) is None

    def ending(self, study: Study, remaining_s: float) -> str:
        """See `Strategy.ending`."""
        if study.space is None or not _measured_baselines(study):
            return ""
        reserved = reserved_s(study, Costs.of(study), _BASE)
        search = SearchState.of(study, study.space, remaining_s - reserved, self._parts)
        if search is None:
            why = (
                "no throughput was measured to compare by" if study.space.free() else "no knob can be varied"
            )
            return f"Nothing new was tried, as {why}."
        return f"Nothing new was tried any more, as {self._why_over(search)}."

    def _why_over(self, search: SearchState) -> str:
        if search.has_spent_trials:
            return "the trials left are needed for the confirmation"
        if not search.costs.fits(search.costs.screen_s, search.remaining_s):
            return "no further run fits into the time left"
        if search.spare_s < search.costs.screen_s:
            return "the time left is needed for the confirmation"
        if self._pure_sampler:
            return "the sampler had nothing more to propose"
        if no_progress(search, whole_patience(search)):
            return f"the last {whole_patience(search)} exploring runs found nothing faster"
        return too_dear(replace(search, model=search.own)) or (
            "no remaining configuration that fits into the time was expected to be faster"
        )

    def _baseline_again(
        self, study: Study, costs: Costs, remaining_s: float, *, is_last: bool
    ) -> Proposal | None:
        """Return another run of the unchanged script, if the search began with a single one.

        It measures the noise between runs and the reference of gains. Neither is needed before some runs of
        other configs have to be compared.
        """
        baselines = [t for t in study.trials if t.stage is Stage.BASELINE]
        screened = sum(t.stage in (Stage.INITIAL, Stage.REFINE) for t in study.trials)
        limit = study.spec.budget.trials
        if len(baselines) != 1 or (limit is not None and len(study.trials) >= limit):
            return None
        if screened < _BASELINE_AFTER and not (is_last and not study.open_trials):
            return None
        space = study.space
        search = None if space is None else SearchState.of(study, space, remaining_s, self._parts)
        spare_s = remaining_s if search is None else search.spare_s
        if costs.plain_s * (1 + 2 * CYCLES) > remaining_s or costs.plain_s > spare_s:
            return None  # confirmation runs the script as well
        fidelity = costs.fidelity(Stage.BASELINE, _BASE, remaining_s=remaining_s, reserve_s=0.0)
        # The duration of the script is known by now.
        deadline_s = min(fidelity.deadline_s, max(_LONGEST * costs.plain_s, _SHORTEST_DEADLINE_S))
        fidelity = replace(fidelity, deadline_s=deadline_s, setup_s=min(fidelity.setup_s, deadline_s))
        reason = "Your unchanged script, once more with another seed."
        return Proposal(stage=Stage.BASELINE, config=_BASE, fidelity=fidelity, reason=reason, seed=1)

    def _baseline(self, study: Study, remaining_s: float) -> Proposal | None:
        baselines = [t for t in study.trials if t.stage is Stage.BASELINE]
        limit = study.spec.budget.trials
        wanted = BASELINES if limit is None else min(BASELINES, limit)
        if study.open_trials or len(baselines) >= wanted or len(baselines) < len(study.trials):
            return None
        if baselines and not _measured_baselines(study):
            return None
        # With a limit on trials, it runs at once.
        if baselines and limit is None:
            return None
        costs = Costs.of(study)
        if baselines and costs.plain_s * (1 + 2 * CYCLES) > remaining_s:
            return None
        fidelity = costs.fidelity(Stage.BASELINE, _BASE, remaining_s=remaining_s, reserve_s=0.0)
        if not baselines and limit is None and study.spec.why and study.ranks == 1:
            fidelity = replace(fidelity, probe=CEILINGS)
        reason = "Your unchanged script" + (", once more with another seed." if baselines else ".")
        return Proposal(
            stage=Stage.BASELINE, config=_BASE, fidelity=fidelity, reason=reason, seed=len(baselines)
        )

    def _screen(self, study: Study, space: SearchSpace, remaining_s: float) -> Proposal | None:
        search = SearchState.of(study, space, remaining_s, self._parts)
        if search is None or search.spare_s < search.costs.screen_s or search.has_spent_trials:
            return None
        if _sentinel_due(search):
            return search.proposal(
                Stage.DRIFT_CHECK, Suggestion(_BASE, "Your script once more, to check for drift.")
            )
        repeat = _undisturbed_again(search)
        if repeat is not None:
            return repeat
        if self._pure_sampler:
            return search.proposal(Stage.REFINE, self._sampled(search))
        apart = separating(search)
        if apart is not None:
            return search.proposal(Stage.REFINE if search.is_refining else Stage.INITIAL, apart)
        picked = (None if start_is_over(search) else next_start(search)) or uncovered(search)
        if picked is not None:
            return search.proposal(Stage.INITIAL, picked)
        return self._refine(search)

    def _refine(self, search: SearchState) -> Proposal | None:
        # Results of earlier studies order a search but do not end it.
        own = replace(search, model=search.own)
        again = second_look(own)
        if again is not None:
            return again
        if too_dear(own):
            return None
        if no_progress(own, whole_patience(own)):
            return own.proposal(Stage.REFINE, for_front(own))
        search = on_its_own(search)
        last = search.proposal(Stage.REFINE, self._in_turn(search, own)) or last_doubts(own)
        return last or own.proposal(Stage.REFINE, for_front(own))

    def _in_turn(self, search: SearchState, own: SearchState) -> Suggestion | None:
        """Return the suggestion of the next source in turn; a source without one passes to the models."""
        count = sum(1 for t in search.study.trials if t.stage is Stage.REFINE)
        picked: Suggestion | None = None
        if count % _TRAINING_EVERY == _TRAINING_EVERY - 2:
            picked = simpler(search)
        elif count % _TRAINING_EVERY == _TRAINING_EVERY - 1:
            picked = training_changing(search, in_turn=True)
        elif search.parts.free_draws and _is_square(count):
            picked = random_draw(search)
        if picked is None and self._sampler is not None and count % _SAMPLER_EVERY == _SAMPLER_EVERY - 1:
            picked = self._sampled(search)
        # If nothing training-preserving is left, training-changing configs get the turn at once.
        picked = picked or likeliest(search) or simpler(search) or training_changing(search)
        if picked is None and search.model is not search.own:
            picked = likeliest(own)
        if picked is None and search.parts.free_draws and count < PATIENCE:
            picked = random_draw(search)
        return picked

    def _sampled(self, search: SearchState) -> Suggestion | None:
        if self._sampler is None:
            return None

        # A sampler uses throughput alone, and most of a space with effective batches changes the training.
        # The planner has a separate turn for that. Another sampler gets the same time for it, and more only
        # if nothing else is left.
        if not self._pure_sampler:
            return _drawn(search, self._sampler, *_training_preserving_part(search), search.plausible)
        whole, bold_s = (search.study, search.space), left_for_training_changing_s(search)

        def cheap(config: Config) -> bool:
            return search.training_preserving(config) or search.costs.screening(config) <= bold_s

        picked = None
        if bold_s >= search.costs.plain_s:
            picked = _drawn(search, self._sampler, *whole, cheap)
        picked = picked or _drawn(search, self._sampler, *_training_preserving_part(search))
        return picked or _drawn(search, self._sampler, *whole)


def _drawn(
    search: SearchState,
    sampler: Sampler,
    study: Study,
    space: SearchSpace,
    also: Callable[[Config], bool] = lambda _: True,
) -> Suggestion | None:
    """Return a permitted proposal of the sampler; None without one.

    Args:
        search: State that decides what may be tried.
        sampler: Sampler to draw from.
        study: Study passed to the sampler.
        space: Space to draw from.
        also: Additional condition on a config.
    """

    def may(config: Config) -> bool:
        return search.may_try(config) and also(config)

    for attempt in range(_ATTEMPTS):
        config = sampler.propose(study, space, search.trials * _ATTEMPTS + attempt, may)
        if config is None:
            return None
        if may(config):
            return Suggestion(config, "Drawn by the sampler.")
    return None


def _training_preserving_part(search: SearchState) -> tuple[Study, SearchSpace]:
    """Return the study and its space without training-changing configs."""
    space = search.space
    kept = {
        name: replace(d, values=()) if d.effect is Effect.TRAINING else d
        for name, d in space.dimensions.items()
    }
    trials = tuple(t for t in search.study.trials if space.effect(t.config) is not Effect.TRAINING)
    return replace(search.study, trials=trials), replace(space, dimensions=kept)


def _undisturbed_again(search: SearchState) -> Proposal | None:
    """Return a repeat of a config with disturbed runs only, the baseline first.

    Nothing is repeated while the latest run was disturbed too, as a repeat would have the same load.
    """
    runs = Counter(t.config for t in search.study.trials)
    begun = {t.config for t in search.study.open_trials}
    again = [c for c in only_disturbed(search.study) if runs[c] < _MOST_DISTURBED and c not in begun]
    waiting = [c for c in again if search.affordable(c)]
    if not waiting:
        return None
    config = max(waiting, key=lambda c: (c.is_baseline, search.model.predict(c)[0], c.canonical()))
    stage = Stage.BASELINE if config.is_baseline else Stage.REFINE if search.is_refining else Stage.INITIAL
    reason = f"{AGAIN} other processes disturbed every run of it."
    proposal = search.proposal(stage, Suggestion(config, reason))
    return None if proposal is None else replace(proposal, seed=runs[config])


def _measured_baselines(study: Study) -> list[Config]:
    return [t.config for t in study.baseline if t.measurement]


def _sentinel_due(search: SearchState) -> bool:
    """Return whether a run of the unchanged script is overdue and there is time for it."""
    study = search.study
    if study.spec.budget.seconds < _SENTINEL_FROM_S or study.spec.budget.trials is not None:
        return False
    last = max((i for i, t in enumerate(study.trials) if t.config.is_baseline), default=0)
    return len(study.trials) - 1 - last >= _SENTINEL_EVERY


def _is_square(count: int) -> bool:
    """Return whether the turn is for a random draw: more often early, and in no other turn's place."""
    return count > 1 and math.isqrt(count) ** 2 == count
