"""Selection of the next ablation run: rounds of the winner, complete and without each of its knobs; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.pick import answer_or_none
from autotune.compare.ablation import ablated, variants
from autotune.compare.comparison import compare
from autotune.compare.extension import cycles_left
from autotune.compare.failed_configs import broken
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.config import Config
from autotune.model.objective import ENERGY
from autotune.model.trial import Family, Proposal, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.search.costs import Costs

_BASE = Config()
_FINAL_ROUNDS = 3
"""Confirmation rounds that the ablated winner may need: script, winner and simplified config."""


def next_ablation(study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
    """Return the next ablation run.

    Ablation starts only for a confirmed winner that changes at least two knobs. All its rounds and a
    confirmation of the simplified config have to fit the remaining time. Effects of knobs are reported as
    speed, so a winner by energy is not ablated.

    Returns:
        None if there is nothing to ablate, every run is done, or the next run does not fit.
    """
    if study.open_trials or study.spec.objective == ENERGY:
        return None
    winner = ablated(study)
    if winner is None:
        winner = _winner(study)
        if winner is None or not _fits(study, winner, costs, remaining_s):
            return None
    line = _line(study, winner)
    trials = [t for t in study.trials if t.stage is Stage.ABLATE]
    group = max((t.group for t in trials), default=0)
    proposed = {t.config for t in trials if t.group == group}
    failed = _failed(trials)
    if group and (winner in failed or winner in broken(study)):
        return None
    rest = [c for c in _order(line, group) if c not in proposed and c not in failed]
    if not group or not rest or (Stage.ABLATE, group) in study.cut:
        if group >= costs.ablation_cycles:
            return None
        group += 1
        rest = [c for c in _order(line, group) if c not in failed]
    if not rest or not costs.fits(costs.next_run(rest[0]), remaining_s) or _trials_spent(study):
        return None
    config = rest[0]
    knob = next((k for k, v in variants(study, winner).items() if v == config), "")
    what = f"The winner without {knob}" if knob else "The winner"
    return Proposal(
        stage=Stage.ABLATE,
        config=config,
        fidelity=costs.fidelity(Stage.ABLATE, config, remaining_s=remaining_s, reserve_s=0.0),
        reason=f"{what}, in ablation cycle {group}.",
        seed=group + 1,
        group=group,
    )


def under_way(study: Study, costs: Costs) -> bool:
    """Return whether an ablation has started and has rounds left."""
    winner = ablated(study)
    if winner is None:
        return False
    trials = [t for t in study.trials if t.stage is Stage.ABLATE]
    failed = _failed(trials)
    if winner in failed or winner in broken(study):
        return False
    group = max(t.group for t in trials)
    if (Stage.ABLATE, group) in study.cut:
        return group < costs.ablation_cycles
    proposed = {t.config for t in trials if t.group == group}
    return group < costs.ablation_cycles or any(c not in proposed | failed for c in _line(study, winner))


def _failed(trials: Iterable[Trial]) -> set[Config]:
    """Return the configs that failed; a run cancelled with its driver is no failure."""
    return {t.config for t in trials if t.failure and t.failure.kind.family is not Family.CANCELLED}


def _winner(study: Study) -> Config | None:
    # Called after every round: `compare` is cheaper than a complete answer while nothing wins.
    if not any(compared.wins for compared in compare(study)):
        return None
    found = answer_or_none(study)
    if found is None or not found.is_better:
        return None
    (chosen,) = (c for c in compare(study) if c.config == found.best.config)
    # After the usual pairs a claim is made at an interim analysis or the end; an ablation would delay it.
    waits = chosen.speedup.n > USUAL_RUNS and not chosen.is_early and cycles_left(study) > 0
    return None if waits else found.best.config


def _line(study: Study, winner: Config) -> list[Config]:
    """Return the winner and its variants, without the baseline."""
    return [winner, *(c for c in variants(study, winner).values() if c != _BASE)]


def _order(line: list[Config], group: int) -> list[Config]:
    """Rotate the order and alternate its direction per round, so that drift affects all configs alike."""
    start = (group // 2) % len(line)
    turned = [*line[start:], *line[:start]]
    return turned if group % 2 else turned[::-1]


def _fits(study: Study, winner: Config, costs: Costs, remaining_s: float) -> bool:
    line = _line(study, winner)
    if len(winner) < 2 or len(line) < 3:
        return False
    cycle_s = sum(costs.confirming(c) for c in line)
    once_s = sum(costs.next_run(c) for c in line) - cycle_s
    final_s = _FINAL_ROUNDS * costs.cycle([winner, winner])
    limit = study.spec.budget.trials
    runs = costs.ablation_cycles * len(line) + 3 * _FINAL_ROUNDS
    if limit is not None and len(study.trials) + runs > limit:
        return False
    return costs.ablation_cycles * cycle_s + once_s + final_s <= remaining_s


def _trials_spent(study: Study) -> bool:
    limit = study.spec.budget.trials
    return limit is not None and len(study.trials) >= limit
