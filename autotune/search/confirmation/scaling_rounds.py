"""Rounds of fresh runs, one per number of processes, until the rounds or the time are used up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.scaling import config_of, own_processes, processes_of
from autotune.model.config import Config
from autotune.model.trial import Proposal, Stage
from autotune.search.costs import Costs
from autotune.search.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.study import Study


class ScalingRounds(Strategy):
    """One run that measures the cost of a run, then rounds in alternating order.

    A number of processes whose run failed by its own fault is left out of later rounds.

    Args:
        counts: Numbers of processes, ascending; the first is the reference.
        rounds: Maximum number of rounds.
    """

    def __init__(self, counts: Sequence[int], *, rounds: int) -> None:
        self._counts = tuple(counts)
        self._rounds = rounds

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        """See `Strategy.ask`."""
        if study.stopped or study.open_trials:
            return None
        if not study.trials:
            return self._proposal(study, Stage.BASELINE, Config(), 0, remaining_s)
        if not any(t.measurement for t in study.baseline) or own_processes(study, self._counts[0]):
            return None
        trials = [t for t in study.trials if t.stage is Stage.CONFIRM]
        group = max((t.group for t in trials), default=0)
        left = self._left(study, group)
        if not left:
            group += 1
            left = self._left(study, group)
        if group > self._rounds or not left:
            return None
        costs = Costs.of(study)
        # A round that cannot finish is not started: its runs would belong to no pair.
        if sum(costs.confirming(config) for config in left) > remaining_s:
            return None
        return self._proposal(study, Stage.CONFIRM, left[0], group, remaining_s)

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        """See `Strategy.is_finished`."""
        return not study.open_trials and self.ask(study, remaining_s) is None

    def _left(self, study: Study, group: int) -> list[Config]:
        """Return the runs left in a round; an even round runs the most processes first."""
        if not group:
            return []
        failed = {t.config for t in study.finished() if t.failure is not None and t.failure.kind.teaches}
        order = self._counts if group % 2 else self._counts[::-1]
        configs = [config_of(count, self._counts[0]) for count in order]
        done = {t.config for t in study.trials if t.stage is Stage.CONFIRM and t.group == group}
        return [config for config in configs if config not in done and config not in failed]

    def _proposal(
        self, study: Study, stage: Stage, config: Config, group: int, remaining_s: float
    ) -> Proposal:
        fidelity = Costs.of(study).fidelity(stage, config, remaining_s=remaining_s, reserve_s=0.0)
        count = processes_of(config, self._counts[0])
        what = "One process" if count == 1 else f"{count} processes"
        return Proposal(
            stage=stage,
            config=config,
            fidelity=fidelity,
            reason=f"{what}, round {group}." if group else f"{what}: what a run takes.",
            seed=group,
            group=group,
        )
