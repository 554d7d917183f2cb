"""When a process is spent on finding out what holds the script, or the winner, back; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.config import Config
from autotune.core.pick import answer_or_none
from autotune.core.trial import Proposal, Stage

if TYPE_CHECKING:
    from autotune.core.study import Study
    from autotune.search.costs import Costs

PROBE_S = 6.0
"""Cached batches, loader alone, and what the machine can do."""
PROBE_STEPS = 12
"""Steps beyond the window that a slow script still has to take."""
BUDGET_SHARE = 0.05
"""A probe that costs more of the budget than this is left out."""
PROFILE_SHARE = 0.2
"""The same where a profile was asked for by name."""

_BASE = Config()


def probe_s(study: Study, costs: Costs, config: Config) -> float:
    """Seconds that a probe of this config takes; 0 where none is worth it."""
    if not study.spec.why or study.spec.budget.trials is not None or costs.plain_s <= 0:
        return 0.0
    steps = [t.measurement.step_time_s.value for t in study.baseline if t.measurement]
    warm_s = 0.0 if config.is_baseline else 0.2 * costs.cold_compile(config)
    seconds = costs.plain_s + PROBE_S + PROBE_STEPS * max(steps, default=0.0) + warm_s
    share = PROFILE_SHARE if study.spec.profile else BUDGET_SHARE
    return seconds if seconds <= share * study.spec.budget.seconds else 0.0


def script_probe(study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
    """Of the script as it is, once its first runs are over and before anything else is tried."""
    if any(t.stage not in (Stage.BASELINE, Stage.WHY) for t in study.trials):
        return None
    return _probe(study, costs, _BASE, remaining_s, "What holds your script back.")


def winner_probe(study: Study, costs: Costs, remaining_s: float) -> Proposal | None:
    """Of what is recommended, once nothing is left to be confirmed."""
    found = answer_or_none(study) if any(t.stage is Stage.CONFIRM for t in study.trials) else None
    if found is None or not found.is_better:
        return None
    return _probe(study, costs, found.best.config, remaining_s, "What holds the winner back.")


def kept_s(study: Study, costs: Costs, config: Config) -> float:
    """Seconds to be left for the winner's probe while there may still be one; `config` is a likely winner."""
    done = any(t.stage is Stage.WHY and not t.config.is_baseline for t in study.trials)
    return 0.0 if done else probe_s(study, costs, config)


def _probe(study: Study, costs: Costs, config: Config, remaining_s: float, reason: str) -> Proposal | None:
    seconds = probe_s(study, costs, config)
    if not seconds or seconds > remaining_s or study.open_trials:
        return None
    if any(t.stage is Stage.WHY and t.config == config for t in study.trials):
        return None
    fidelity = costs.fidelity(Stage.WHY, config, remaining_s=remaining_s, reserve_s=0.0)
    fidelity = replace(
        fidelity,
        probe="profile" if study.spec.profile else "why",
        deadline_s=min(remaining_s, fidelity.deadline_s + PROBE_S),
        loss_samples=0,
    )
    return Proposal(stage=Stage.WHY, config=config, fidelity=fidelity, reason=reason)
