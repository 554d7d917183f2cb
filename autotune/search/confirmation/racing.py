"""The race of the finalists: who takes part in the next cycle of confirmation, and who is settled; pure.

All answers hang on the cycles before, so that they stay as they are within one.
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
from autotune.search.screening.shortlist import readings, shortlist
from autotune.search.trial_limit import CYCLES, most_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.compare.comparison import Comparison
    from autotune.model.study import Study
    from autotune.search.feature_flags import FeatureFlags

_CYCLES_WITH_MORE = 4
_PLANNED_CYCLES = 6
_CLEAR_WIDTH = 0.04
_CLEAR_SHARE = 0.25
_NO_GAIN = 1.02
_ALIKE = 0.02
"""Share of a speedup within which two finalists read alike."""
_FAIR_CHANCE = 0.2
_ALIKE_RUNS = 2.0
"""Standard deviations of single runs within which two configurations read alike before any pair was run."""
_CHEAPER = 0.8
"""Share of the cost of a cycle below which a configuration counts as cheaper."""
_NORMAL = NormalDist()


def select_members(
    before: Study,
    past: Sequence[Comparison],
    study: Study,
    costs: Costs,
    remaining_s: float,
    parts: FeatureFlags,
) -> tuple[Config, ...]:
    """Finalists by the cycles before, best first; at first as many as four cycles can be paid for.

    Args:
        before: The study without the cycle under way.
        past: Of the cycles before.
        study: As of now.
        costs: Of the study.
        remaining_s: Budget left, in seconds of wall time.
        parts: What of the planner takes part.
    """
    cycles = [t for t in before.trials if t.stage is Stage.CONFIRM]
    began, out = _began(before), _ruled_out(past, parts)
    not_in = excluded(before, past, parts)
    chosen = shortlist(before, out=not_in, parts=parts)
    if began:
        failed = broken(before)
        replaced = bool(out) or _failed(before) or not began.isdisjoint(failed)
        # Beyond the usual cycles nobody new comes in.
        replaced = replaced and max(t.group for t in cycles) < USUAL_RUNS
        kept = tuple(c for c in chosen if c in began or replaced)
        if replaced and parts.ties_after_pairs:
            # Who stood beside one that is gone goes on without it.
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
        # What a run takes is known better after each; once one has run, its cycle is not planned anew.
        chosen = _affordable(before, chosen, not_in, costs, whole, parts)
    kept = chosen = (*(c for c in chosen if c in running), *(c for c in chosen if c not in running))
    if limit is not None:
        left_over = limit - sum(1 for t in study.trials if t.stage is not Stage.CONFIRM)
        kept = chosen[: max(1, min(most_members(limit), left_over // CYCLES - 1))]
    while len(kept) > 1 and _CYCLES_WITH_MORE * costs.cycle(kept) > whole:
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
    """Finalists whose fewest pairs fit into the time, the others replaced by the next best.

    Where the first is so dear that few pairs fit, a cheaper configuration that reads alike goes before it, as
    more pairs prove more.
    """
    lost = set(out)
    while chosen and costs.fewest(chosen[0]) > whole_s:
        lost.add(chosen[0])
        chosen = shortlist(before, out=frozenset(lost), parts=parts)
    if not chosen or _CYCLES_WITH_MORE * costs.cycle(chosen[:1]) <= whole_s:
        return chosen
    first, expected = chosen[0], readings(before, parts, out=frozenset(lost))
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
    """Members that more cycles can still tell something about; the best is the last to leave.

    Args:
        past: Of the cycles before.
        members: Best first.
        cycles: There were so far.
        begun: In which cycle each of them ran first.
        more: Cycles beyond the usual ones that there is room for, where a gain may ask for them.
    """
    if cycles < CYCLES:
        return tuple(members)
    compared = {c.config: c for c in past}
    open_ones = [c for c in members if c not in compared or not _settled(compared[c], cycles)]
    if cycles >= _PLANNED_CYCLES:
        open_ones = [c for c in open_ones if c == members[0] or len(_logs(compared, c)) < _PLANNED_CYCLES]
    if cycles >= USUAL_RUNS:
        # Who came late, as what an ablation leaves does, gets the pairs that were planned.
        late = {c for c in open_ones if cycles - begun.get(c, cycles) < _PLANNED_CYCLES}
        longer = {c for c, one in compared.items() if _waits(one) or _nears(one, more)}
        open_ones = [c for c in open_ones if c in late or c in longer]
    if any(c not in compared for c in open_ones):
        # Who comes late is compared with the first as well, in the same cycles.
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
    """The first alone where the time left shows its gain, or then its loss, only so; else all of them.

    To give more pairs to what reads well changes the level of its last look by about a hundredth of it
    (docs/decisions/0057). Of a loss nobody knows how many runs will show it: where it alone is open, the
    first, or one that reads as fast and has more pairs, goes alone unless there is time for the usual cycles
    with all.

    Args:
        past: Of the cycles before.
        active: Who would take part, best first.
        before: The study without the cycle under way.
        left_s: At the begin of the cycle.
        cycles: There were so far.
        parts: Of the planner.
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
        # Of two alike now one leads and now the other: who has gone alone before goes on.
        least = (1.0 - _ALIKE) * compared[first].speedup.value
        alike = [c for c in waiting if compared[c].speedup.value >= least]
        return (max(alike, key=lambda c: compared[c].speedup.n),)
    return active if reaches(first, active) or not reaches(first, [first]) else (first,)


def given_up(compared: Sequence[Comparison], parts: FeatureFlags) -> list[Comparison]:
    """Finalists whose loss stays unclear, and which the runs still to come would hardly clear."""
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
    """Who is out, and who has not begun and would fare no better than one that is."""
    return frozenset(_ruled_out(past, parts) | (_as_hopeless(before, past, parts) - _began(before)))


def _with_time_for(
    kept: tuple[Config, ...], before: Study, study: Study, remaining_s: float
) -> tuple[Config, ...]:
    """Of those that would come in late the first, and as many as still get the pairs that a claim needs.

    Counted from the beginning of a cycle under way, so that it answers alike throughout the cycle.
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
    asked = {t.config for t in running}
    dropped: set[Config] = set()
    while fresh and len(late) - len(dropped) > 1 and fresh[-1] not in asked:
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
    """With whom the cycles themselves have brought in; of those that have run before the foremost first.

    By the cycles before, so that it answers alike throughout one.
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
    """Who has taken part; a cycle that was cut may not have come to all of them."""
    runs = (t for t in study.trials if t.stage is Stage.CONFIRM)
    return {t.config for t in runs if (t.stage, t.group) not in study.cut}


def _confirmed(study: Study) -> dict[Config, None]:
    """Whom confirmation has asked for, in that order."""
    runs = (t.config for t in study.trials if t.stage is Stage.CONFIRM)
    return dict.fromkeys(c for c in runs if not c.is_baseline)


def _failed(study: Study) -> bool:
    # A run that was given up with its driver says nothing of its config.
    failures = [t.failure for t in study.told(Stage.CONFIRM) if t.failure is not None]
    return any(failure.kind.family is not Family.CANCELLED for failure in failures)


def _ruled_out(compared: Sequence[Comparison], parts: FeatureFlags) -> set[Config]:
    """Finalists that are slower, or worse in loss, beyond doubt, and those that were given up."""
    return {c.config for c in given_up(compared, parts)} | {
        c.config
        for c in compared
        if len(c.logs) >= CYCLES
        and (c.speedup.high < 1.0 or c.loss.verdict == "fail" or c.loss.rule or _wastes(c))
    }


def _wastes(compared: Comparison) -> bool:
    """It takes more energy per sample than the script, where the least is wanted."""
    return compared.saving is not None and compared.saving.high < 1.0


def _as_hopeless(study: Study, compared: Sequence[Comparison], parts: FeatureFlags) -> set[Config]:
    """Configs with all that may touch the loss of one that was given up: they would fare no better."""
    space = study.space
    if space is None:
        return set()
    touching = [
        {(k, v) for k, v in c.config.items() if space.effect(Config({k: v})) is not Effect.EXACT}
        for c in given_up(compared, parts)
    ]
    seen = {t.config for t in study.told(Stage.INITIAL, Stage.REFINE)}
    return {c for c in seen if any(changes <= set(c.items()) for changes in touching)}


def _nears(compared: Comparison, more: int) -> bool:
    """Its gain, if it is what it reads, has a fair chance of being claimed with so many pairs more.

    That is no going on until it has won: there are two late looks and an end, with levels that allow for
    all of them (`autotune.compare.alpha_spending`). Who has hardly a chance saves the time.
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
    """It wins, but for a loss that is not judged yet and that more runs may clear."""
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
        # The interval allows for so many looks, at its own pairs: it may have come late, or lost some.
        clear = width <= _CLEAR_WIDTH * speedup.value or width <= _CLEAR_SHARE * (speedup.value - 1.0)
        return clear and compared.is_early
    return speedup.high < _NO_GAIN and cycles >= _PLANNED_CYCLES - 1
