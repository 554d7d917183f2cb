"""Selection of the next confirmation run: rounds of the baseline and every finalist left; pure.

The order is reversed in every second round, so that machine drift affects all configs alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.answer.pick import answer_or_none
from autotune.compare.ablation import without_idle
from autotune.compare.comparison import Comparison, compare
from autotune.compare.extension import cycles_left, goes_on
from autotune.compare.failed_configs import broken
from autotune.model.config import Config
from autotune.model.trial import Proposal, Stage
from autotune.search.confirmation.ablation_runs import next_ablation, under_way
from autotune.search.confirmation.racing import active_members, excluded, focus, given_up, select_members
from autotune.search.costs import Costs
from autotune.search.screening.shortlist import shortlist
from autotune.search.trial_limit import CYCLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study
    from autotune.search.feature_flags import FeatureFlags

_BASE = Config()


def is_confirming(study: Study) -> bool:
    """Return whether confirmation has begun."""
    return any(t.stage is Stage.CONFIRM for t in study.trials)


def has_winner(study: Study) -> bool:
    """Return whether confirmation has shown a finalist to be faster and nothing prevents recommending it."""
    found = answer_or_none(study) if is_confirming(study) else None
    return found is not None and found.is_better


def next_confirmation(study: Study, remaining_s: float, parts: FeatureFlags) -> Proposal | None:
    """Return the next run of a round, or of the ablation of a winner.

    One run at a time.

    Args:
        study: Current study.
        remaining_s: Budget left, in seconds of wall time.
        parts: Enabled features of the planner.

    Returns:
        None if a run is open, nothing is left to measure, or no run fits.
    """
    if study.open_trials:
        return None
    limit = study.spec.budget.trials
    if limit is not None and len(study.trials) >= limit:
        return None
    costs = Costs.of(study)
    group, proposed = _last_cycle(study)
    if group and (Stage.CONFIRM, group) not in study.cut:
        # Members depend on completed rounds only, so they cannot change within one.
        before = _before(study, group)
        past = _compared(before)
        members = select_members(before, past, study, costs, remaining_s, parts)
        active = active_members(past, members, group - 1, _begun(before), _more(before))
        running_s = sum(t.seconds for t in study.finished(Stage.CONFIRM) if t.group == group)
        focused = focus(past, active, before, remaining_s + running_s, group - 1, parts)
        # Seconds between runs may change the estimate; a config that ran in this round stays in it.
        active = active if any(c in active and c not in focused for c in proposed) else focused
        following = _rest_of_cycle(group, proposed, active, costs, remaining_s)
        if following is not None:
            why = _why(before, following, past, parts)
            return _cycle_proposal(costs, group, following, active, remaining_s, why)
    if under_way(study, costs):
        apart = next_ablation(study, costs, remaining_s)
        if apart is not None:
            return apart
    now = _compared(study)
    members = select_members(study, now, study, costs, remaining_s, parts)
    active = active_members(now, members, group, _begun(study), _more(study))
    active = focus(now, active, study, remaining_s, group, parts)
    if group >= CYCLES and not (parts.overtakes and _is_late(study, active)):
        # A winner is ablated as soon as it wins; the simplified config then shares the following rounds.
        apart = next_ablation(study, costs, remaining_s)
        if apart is not None:
            return apart
    if active and cycles_left(study) > 0:
        following = _first_of_cycle(group + 1, active, costs, remaining_s)
        if following is not None:
            why = _why(study, following, now, parts)
            return _cycle_proposal(costs, group + 1, following, active, remaining_s, why)
    return None


def _more(study: Study) -> int:
    """Return the number of rounds beyond the usual ones that a gain may use."""
    return cycles_left(study) if goes_on(study) else 0


def _before(study: Study, group: int) -> Study:
    return replace(
        study, trials=tuple(t for t in study.trials if t.stage is not Stage.CONFIRM or t.group < group)
    )


def _is_late(study: Study, active: Sequence[Config]) -> bool:
    """Return whether a late finalist still has to be compared with the config that would be ablated."""
    begun, runs = _begun(study), Counter(t.config for t in study.finished(Stage.CONFIRM))
    first = min(begun.values(), default=0)
    return any(runs[c] < CYCLES and begun.get(c, first + 1) > first for c in active)


def _begun(study: Study) -> dict[Config, int]:
    """Return the first round of each config."""
    found: dict[Config, int] = {}
    for trial in study.trials:
        if trial.stage is Stage.CONFIRM:
            found[trial.config] = min(trial.group, found.get(trial.config, trial.group))
    return found


def _last_cycle(study: Study) -> tuple[int, list[Config]]:
    trials = [t for t in study.trials if t.stage is Stage.CONFIRM]
    group = max((t.group for t in trials), default=0)
    return group, [t.config for t in trials if t.group == group]


def _compared(study: Study) -> list[Comparison]:
    return compare(study) if is_confirming(study) else []


def _order(group: int, members: Sequence[Config]) -> list[Config]:
    line = [_BASE, *members]
    return line if group % 2 else line[::-1]


def _first_of_cycle(group: int, members: Sequence[Config], costs: Costs, remaining_s: float) -> Config | None:
    """Return the config that starts the round; late finalists are left out if time is short."""
    order = _order(group, members)
    if not costs.fits(costs.cycle(members[:1]), remaining_s):
        return None
    if group % 2:
        return order[0]
    for position, config in enumerate(order[:-1]):
        planned_s = sum(costs.confirming(c) for c in order[position:])
        if costs.fits(planned_s, remaining_s) or config == members[0]:
            return config
    return None


def _rest_of_cycle(
    group: int, proposed: Sequence[Config], members: Sequence[Config], costs: Costs, remaining_s: float
) -> Config | None:
    """Return the next member of the current round, in order after those that have run."""
    order = _order(group, members)
    places = [order.index(c) for c in proposed if c in order]
    if not places:
        return None
    wanted = order[max(places) + 1 :]
    needed = [c for c in wanted if c.is_baseline]
    for config in wanted:
        after = sum(costs.confirming(c) for c in needed if c != config)
        if costs.fits(costs.confirming(config) + after, remaining_s):
            return config
    return None


def _why(before: Study, config: Config, past: Sequence[Comparison], parts: FeatureFlags) -> str:
    """Return why the config runs now and which config it replaces; each sentence starts with a blank."""
    why = ""
    confirmed = {t.config for t in before.trials if t.stage is Stage.CONFIRM}
    if confirmed and not config.is_baseline and config not in confirmed and parts.overtakes:
        out = excluded(before, past, parts)
        if config == without_idle(before):
            why = " It is the winner without the changes that have no measurable effect."
        elif not (out | broken(before).keys()) or config not in shortlist(before, out=out, parts=parts):
            why = " By all runs so far it may be faster than the first finalist."
    is_new = config not in confirmed and not config.is_baseline
    gone = given_up(past, parts) if is_new else ()
    return why + "".join(f" {one.config.text()} makes room: {one.loss.reason}" for one in gone)


def _cycle_proposal(
    costs: Costs,
    group: int,
    config: Config,
    members: Sequence[Config],
    remaining_s: float,
    why: str,
) -> Proposal:
    fidelity = costs.fidelity(Stage.CONFIRM, config, remaining_s=remaining_s, reserve_s=0.0)
    what = "Your script" if config.is_baseline else "A finalist"
    reason = f"{what} in confirmation cycle {group}; finalists: {len(members)}.{why}"
    return Proposal(
        stage=Stage.CONFIRM, config=config, fidelity=fidelity, reason=reason, seed=group + 1, group=group
    )
