"""The race of the finalists: members of the next confirmation round, and configs that are settled; pure.

All results depend on completed rounds only, so they are constant within a round.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist
from typing import TYPE_CHECKING

from autotune.compare.ablation import without_idle
from autotune.compare.failed_configs import broken
from autotune.compare.finalists import may_win
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import Family, Stage
from autotune.search.confirmation.challengers import foremost, newcomer
from autotune.search.costs import Costs
from autotune.search.screening.replicates import run_sd
from autotune.search.screening.shortlist import predicted_log_ratios, shortlist
from autotune.search.trial_limit import CYCLES, most_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.compare.comparison import Comparison
    from autotune.model.study import Study
    from autotune.search.feature_flags import FeatureFlags

_ROUNDS_FOR_SEVERAL = 4
"""Rounds that must fit into the budget for each further finalist."""
_PLANNED_ROUNDS = 6
"""Pairs after which only the leader, and members without as many, continue."""
_CLEAR_WIDTH = 0.04
_CLEAR_SHARE = 0.25
"""A gain is settled if its interval is at most 4 % of the speedup, or a quarter of the gain."""
_NO_GAIN = 1.02
"""A speedup whose upper bound is below this is settled as no gain."""
_ALIKE = 0.02
"""Share of a speedup within which two finalists count as equal."""
_FAIR_CHANCE = 0.2
"""Smallest chance of a claim for which further rounds are run."""
_ALIKE_RUNS = 2.0
"""Standard deviations of single runs within which two configs count as equal before any pair was run."""
_CHEAPER = 0.8
"""Share of the cost of a round below which a config counts as cheaper."""
_NORMAL = NormalDist()


def select_members(
    before: Study,
    past: Sequence[Comparison],
    study: Study,
    costs: Costs,
    remaining_s: float,
    parts: FeatureFlags,
) -> tuple[Config, ...]:
    """Return the finalists by the completed rounds, best first; at first as many as fit four rounds.

    Args:
        before: The study without the current round.
        past: Comparisons of the completed rounds.
        study: Current study.
        costs: Costs of the study.
        remaining_s: Budget left, in seconds of wall time.
        parts: Enabled features of the planner.
    """
    cycles = [t for t in before.trials if t.stage is Stage.CONFIRM]
    began, out = _began(before), _ruled_out(past, parts)
    not_in = excluded(before, past, parts)
    chosen = shortlist(before, out=not_in, parts=parts)
    if began:
        failed = broken(before)
        replaced = bool(out) or _failed(before) or not began.isdisjoint(failed)
        # No config enters after the usual rounds.
        replaced = replaced and max(t.group for t in cycles) < USUAL_RUNS
        kept = tuple(c for c in chosen if c in began or replaced)
        if replaced and parts.ties_after_pairs:
            # The other finalists of a round continue without one that was removed.
            gone = out | failed.keys()
            others = (t.config for t in cycles if t.config in began and not t.config.is_baseline)
            others = (c for c in others if c not in gone and may_win(before, c))
            kept = tuple(dict.fromkeys((*kept, *others)))
        kept = _with_time_for(kept, before, study, remaining_s)
        left = without_idle(before)
        if left is not None and left not in out and left not in failed and left not in kept:
            kept = (*kept, left)
        return _with_newcomers(kept, before, not_in, study, parts)
    whole = remaining_s + sum(t.seconds for t in study.trials if t.stage is Stage.CONFIRM)
    limit = study.spec.budget.trials
    running = {t.config for t in study.trials if t.stage is Stage.CONFIRM and not t.config.is_baseline}
    if not running:
        # Costs are better known after each run; once a run has started, its round is not planned again.
        chosen = _affordable(before, chosen, not_in, costs, whole, parts)
    kept = chosen = (*(c for c in chosen if c in running), *(c for c in chosen if c not in running))
    if limit is not None:
        left_over = limit - sum(1 for t in study.trials if t.stage is not Stage.CONFIRM)
        kept = chosen[: max(1, min(most_members(limit), left_over // CYCLES - 1))]
    while len(kept) > 1 and _ROUNDS_FOR_SEVERAL * costs.cycle(kept) > whole:
        kept = kept[:-1]
    return kept


def _affordable(
    before: Study,
    chosen: tuple[Config, ...],
    out: frozenset[Config],
    costs: Costs,
    whole_s: float,
    parts: FeatureFlags,
) -> tuple[Config, ...]:
    """Return finalists whose fewest pairs fit into the time, the others replaced by the next best.

    A cheaper config of equal reading goes first if few pairs of the leader fit, as more pairs prove more.
    """
    lost = set(out)
    while chosen and costs.fewest(chosen[0]) > whole_s:
        lost.add(chosen[0])
        chosen = shortlist(before, out=frozenset(lost), parts=parts)
    if not chosen or _ROUNDS_FOR_SEVERAL * costs.cycle(chosen[:1]) <= whole_s:
        return chosen
    first, expected = chosen[0], predicted_log_ratios(before, parts, out=frozenset(lost))
    least = expected.get(first, 0.0) - _ALIKE_RUNS * run_sd(before)
    cheaper = [
        c
        for c, log_ratio in expected.items()
        if log_ratio >= max(least, 0.0) and costs.cycle([c]) <= _CHEAPER * costs.cycle([first])
    ]
    if not cheaper:
        return chosen
    cheapest = max(cheaper, key=lambda c: (expected[c], c.canonical()))
    return (cheapest, *(c for c in chosen if c != cheapest))


def active_members(
    past: Sequence[Comparison],
    members: Sequence[Config],
    cycles: int,
    begun: Mapping[Config, int],
    more: int = 0,
) -> tuple[Config, ...]:
    """Return the members for which more rounds can change the result; the best is the last to leave.

    Args:
        past: Comparisons of the completed rounds.
        members: Members, best first.
        cycles: Number of completed rounds.
        begun: First round of each member.
        more: Rounds beyond the usual ones that fit, for a gain that needs them.
    """
    if cycles < CYCLES:
        return tuple(members)
    compared = {c.config: c for c in past}
    open_ones = [c for c in members if c not in compared or not _settled(compared[c], cycles)]
    if cycles >= _PLANNED_ROUNDS:
        open_ones = [c for c in open_ones if c == members[0] or len(_logs(compared, c)) < _PLANNED_ROUNDS]
    if cycles >= USUAL_RUNS:
        # A late member, such as the result of an ablation, gets the planned number of pairs.
        late = {c for c in open_ones if cycles - begun.get(c, cycles) < _PLANNED_ROUNDS}
        longer = {c for c, one in compared.items() if _waits(one) or _nears(one, more)}
        open_ones = [c for c in open_ones if c in late or c in longer]
    if any(c not in compared for c in open_ones):
        # A late member is compared with the first in the same rounds as well.
        return tuple(c for c in members if c == members[0] or c in open_ones)
    return tuple(open_ones)


def focus(
    past: Sequence[Comparison],
    active: tuple[Config, ...],
    before: Study,
    left_s: float,
    cycles: int,
    parts: FeatureFlags,
) -> tuple[Config, ...]:
    """Return the leader alone if only then the remaining time can show its gain or its loss.

    Giving more pairs to a promising config changes the level of its last analysis by about a hundredth
    (docs/decisions/0057). The number of runs that a loss needs is unknown. If only a loss is open, the leader
    runs alone, or an equally fast config with more pairs, unless the usual rounds fit for all.

    Args:
        past: Comparisons of the completed rounds.
        active: Possible members, best first.
        before: The study without the current round.
        left_s: Budget left at the start of the round, in seconds.
        cycles: Number of completed rounds.
        parts: Enabled features of the planner.

    Returns:
        All of `active` in any other case.
    """
    if not parts.focuses or cycles < CYCLES or len(active) < 2:
        return active
    compared, costs = {c.config: c for c in past}, Costs.of(before)
    limit = before.spec.budget.trials

    def more(members: Sequence[Config]) -> float:
        fits = min(left_s // max(0.1, costs.cycle(members)), USUAL_RUNS - cycles)
        if limit is not None:
            fits = min(fits, (limit - len(before.trials)) // (1 + len(members)))
        return fits

    def reaches(config: Config, members: Sequence[Config]) -> bool:
        found = compared.get(config)
        if found is None or found.wanted_pairs is None:
            return False
        return found.speedup.n + more(members) >= found.wanted_pairs

    first = active[0]
    waiting = [c for c in active if c in compared and _waits(compared[c])]
    if first in waiting and more(active) < USUAL_RUNS - cycles:
        # Two equal configs may alternate in the lead: the one that ran alone before continues.
        least = (1.0 - _ALIKE) * compared[first].speedup.value
        alike = [c for c in waiting if compared[c].speedup.value >= least]
        return (max(alike, key=lambda c: compared[c].speedup.n),)
    return active if reaches(first, active) or not reaches(first, [first]) else (first,)


def given_up(compared: Sequence[Comparison], parts: FeatureFlags) -> list[Comparison]:
    """Return the finalists whose loss is unclear and would hardly be cleared by the remaining runs."""
    return [
        c
        for c in compared
        if parts.gives_up
        and len(c.logs) >= CYCLES
        and c.effect is not Effect.EXACT
        and c.loss.verdict == "unclear"
        and not c.loss.can_clear
    ]


def excluded(before: Study, past: Sequence[Comparison], parts: FeatureFlags) -> frozenset[Config]:
    """Return the excluded configs, and untried ones that share the harmful values of an excluded one."""
    return frozenset(_ruled_out(past, parts) | (_as_hopeless(before, past, parts) - _began(before)))


def _with_time_for(
    kept: tuple[Config, ...], before: Study, study: Study, remaining_s: float
) -> tuple[Config, ...]:
    """Return the members, without late ones that would get fewer pairs than a claim needs.

    Counted from the start of the current round, so that the result is constant within it.
    """
    confirmed = [t for t in before.trials if t.stage is Stage.CONFIRM]
    whole = [t for t in confirmed if (t.stage, t.group) not in study.cut]
    first, last = min(t.group for t in whole), max(t.group for t in confirmed)
    runs = Counter(t.config for t in whole)
    early = {t.config for t in whole if t.group == first}
    late = [c for c in kept if c not in early]
    fresh = [c for c in late if not runs[c]]
    costs, limit = Costs.of(before), study.spec.budget.trials
    running = [t for t in study.trials if t.stage is Stage.CONFIRM and t.group > last]
    left_s = remaining_s + sum(t.seconds for t in running)
    proposed = {t.config for t in running}
    dropped: set[Config] = set()
    while fresh and len(late) - len(dropped) > 1 and fresh[-1] not in proposed:
        open_ones = [c for c in late if c not in dropped and runs[c] < CYCLES]
        fits = CYCLES * costs.cycle(open_ones) <= left_s
        if limit is not None:
            fits = fits and CYCLES * (1 + len(open_ones)) <= limit - len(study.trials) + len(running)
        if fits:
            break
        dropped.add(fresh.pop())
    return tuple(c for c in kept if c not in dropped)


def _with_newcomers(
    kept: tuple[Config, ...], before: Study, out: frozenset[Config], study: Study, parts: FeatureFlags
) -> tuple[Config, ...]:
    """Return the members with the challengers so far and a new one; of those that have run, the best first.

    Depends on completed rounds only, so it is constant within one.
    """
    if not parts.overtakes:
        return kept
    gone = out | broken(before).keys()
    there = [c for c in _confirmed(study) if c not in gone and may_win(before, c)]
    members = tuple(dict.fromkeys((*kept, *there)))
    new = newcomer(before, members, gone, parts)
    had = _confirmed(before)
    ranked = foremost(before, [c for c in members if c in had], parts)
    return (*ranked, *(c for c in members if c not in had), *([] if new is None else [new]))


def _began(study: Study) -> set[Config]:
    """Return the configs that have run; a cut round may not have reached all of them."""
    runs = (t for t in study.trials if t.stage is Stage.CONFIRM)
    return {t.config for t in runs if (t.stage, t.group) not in study.cut}


def _confirmed(study: Study) -> dict[Config, None]:
    """Return the configs that confirmation has proposed, in the order of their first runs."""
    runs = (t.config for t in study.trials if t.stage is Stage.CONFIRM)
    return dict.fromkeys(c for c in runs if not c.is_baseline)


def _failed(study: Study) -> bool:
    # A run that was cancelled with its driver is no evidence about its config.
    failures = [t.failure for t in study.finished(Stage.CONFIRM) if t.failure is not None]
    return any(failure.kind.family is not Family.CANCELLED for failure in failures)


def _ruled_out(compared: Sequence[Comparison], parts: FeatureFlags) -> set[Config]:
    """Return finalists that are certainly slower or worse in loss, and those that were given up."""
    return {c.config for c in given_up(compared, parts)} | {
        c.config
        for c in compared
        if len(c.logs) >= CYCLES
        and (c.speedup.high < 1.0 or c.loss.verdict == "fail" or c.loss.rule or _wastes(c))
    }


def _wastes(compared: Comparison) -> bool:
    """Return whether energy is the objective, and it takes more per sample than the script."""
    return compared.saving is not None and compared.saving.high < 1.0


def _as_hopeless(study: Study, compared: Sequence[Comparison], parts: FeatureFlags) -> set[Config]:
    """Return configs that contain every loss-changing value of a config that was given up."""
    space = study.space
    if space is None:
        return set()
    touching = [
        {(k, v) for k, v in c.config.items() if space.effect(Config({k: v})) is not Effect.EXACT}
        for c in given_up(compared, parts)
    ]
    seen = {t.config for t in study.finished(Stage.INITIAL, Stage.REFINE)}
    return {c for c in seen if any(changes <= set(c.items()) for changes in touching)}


def _nears(compared: Comparison, more: int) -> bool:
    """Return whether the observed gain has a fair chance of being claimed after `more` pairs.

    The levels of the two late analyses and of the last one allow for the additional pairs
    (`autotune.compare.alpha_spending`).
    """
    speedup = compared.speedup
    if more <= 0 or compared.is_early or speedup.value <= 1.0 or speedup.n < CYCLES or speedup.low <= 0.0:
        return False
    loss, is_exact = compared.loss, compared.effect is Effect.EXACT
    if loss.verdict == "fail" or loss.rule or not (is_exact or loss.verdict == "pass" or loss.can_clear):
        return False
    now, then = speedup.n, speedup.n + more
    half = math.log(speedup.value / speedup.low)
    run_sd = half * math.sqrt(now) / _NORMAL.inv_cdf((1.0 + speedup.confidence) / 2.0)
    lucky = _NORMAL.inv_cdf(1.0 - _FAIR_CHANCE) * run_sd * math.sqrt(more) / then
    return math.log(speedup.value) + lucky >= half * math.sqrt(now / then)


def _waits(compared: Comparison) -> bool:
    """Return whether only a loss that more runs may clear prevents a win."""
    is_open = compared.effect is not Effect.EXACT and compared.loss.level == 1
    is_open = is_open and compared.loss.verdict == "unclear" and compared.loss.can_clear
    return is_open and compared.wins and (compared.saving is None or compared.saving.low > 1.0)


def _logs(compared: dict[Config, Comparison], config: Config) -> dict[int, float]:
    return dict(compared[config].logs) if config in compared else {}


def _settled(compared: Comparison, cycles: int) -> bool:
    speedup = compared.speedup
    if speedup.n < CYCLES:
        return False
    saving = compared.saving
    if saving is not None and saving.low <= 1.0 and saving.high >= _NO_GAIN:
        return False
    width = speedup.high - speedup.low
    judged = compared.loss.verdict != "unclear" or bool(compared.loss.rule) or compared.effect is Effect.EXACT
    if speedup.low > 1.0 and judged:
        # The interval allows for a fixed number of analyses; a late config or lost runs shift its own pairs.
        clear = width <= _CLEAR_WIDTH * speedup.value or width <= _CLEAR_SHARE * (speedup.value - 1.0)
        return clear and compared.is_early
    return speedup.high < _NO_GAIN and cycles >= _PLANNED_ROUNDS - 1
