"""Who of confirmation waits for whom: what changes the training for what leaves it as it is; pure.

A search is asked for `best` first. Pairs with what only `fastest` may name cost a third of a cycle, and where
time is short it is just that which the loss of the best would have needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.effect import Effect
from autotune.core.inferiority import USUAL_RUNS
from autotune.core.trial import Stage
from autotune.search.costs import Costs
from autotune.search.trial_limit import CYCLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.core.comparison import Comparison
    from autotune.core.config import Config
    from autotune.core.study import Study


def is_tame(study: Study, config: Config) -> bool:
    """It leaves the training as it is."""
    return study.space is not None and study.space.effect(config) is not Effect.TRAINING


def at_once(study: Study, members: Sequence[Config]) -> tuple[Config, ...]:
    """Of those that would begin, who need not wait for another."""
    return tuple(c for c in members if is_tame(study, c)) or tuple(members)


def in_turn(
    past: Sequence[Comparison], active: tuple[Config, ...], before: Study, left_s: float, cycles: int
) -> tuple[Config, ...]:
    """Without who changes the training and has not begun, while the first that does not may want the time.

    It may as long as it has not won, loss included, and reads as if it could. Nobody waits where the time
    does for the usual cycles with all of them, since they share the runs of the script; nobody comes in whom
    it would leave with fewer pairs than a claim needs.

    Args:
        past: Of the cycles before.
        active: Who would take part, best first.
        before: The study without the cycle under way.
        left_s: At the begin of the cycle.
        cycles: There were so far.
    """
    tame = [c for c in active if is_tame(before, c)]
    begun = {t.config for t in before.told(Stage.CONFIRM)}
    waiting = [c for c in active if c not in tame and c not in begun]
    if not waiting or not tame:
        return active
    compared = {c.config: c for c in past}
    wanted = CYCLES
    first = compared.get(tame[0])
    if first is None or not first.is_proved:
        is_open = cycles < CYCLES or _may_win(first)
        wanted = max(CYCLES, USUAL_RUNS - cycles) if is_open else CYCLES
    if _has_room(before, active, left_s, wanted):
        return active
    return tuple(c for c in active if c not in waiting)


def _may_win(found: Comparison | None) -> bool:
    """With the usual cycles, if its gain stays as it reads and nothing is known against its loss."""
    if found is None:
        return True
    if found.loss.verdict == "fail" or found.loss.rule:
        return False
    is_clear = found.effect is Effect.EXACT or found.loss.passed or found.loss.can_clear
    return is_clear and (found.wins or found.wanted_pairs is not None)


def _has_room(study: Study, members: Iterable[Config], left_s: float, cycles: int) -> bool:
    members, limit = tuple(members), study.spec.budget.trials
    if limit is not None and cycles * (1 + len(members)) > limit - len(study.trials):
        return False
    return cycles * Costs.of(study).cycle(members) <= left_s
