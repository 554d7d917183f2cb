"""Samplers by name: one list for the command line, the API, the journal and replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.errors import UsageError, did_you_mean
from autotune.search.feature_flags import DEFAULT, FeatureFlags

if TYPE_CHECKING:
    from autotune.search.strategy import Sampler, Strategy

PLANNER = "staged"
"""Name of the default search (`autotune.search.stages`), which uses TPE occasionally."""

ABOUT = {
    PLANNER: "the planner: models of compute, input, memory and failures, with TPE in turn",
    "tpe": "Optuna's TPE",
    "nsga2": "Optuna's NSGA-II, on throughput and memory together",
    "random": "at random (Optuna)",
    "brute": "everything in turn",
    "coordinate": "coordinate descent: all values of one knob, then on from the fastest",
}
"""Descriptions for users, by name."""

SAMPLERS = tuple(ABOUT)


def strategy_for(name: str, parts: FeatureFlags = DEFAULT) -> Strategy:
    """Return the search with this sampler.

    All samplers share the frame: the unchanged script first, no config that never worked or does not fit, no
    repeats, and confirmation of the finalists. A sampler other than the planner replaces the start points and
    models.

    Args:
        name: One of `SAMPLERS`.
        parts: Enabled features of the planner.

    Raises:
        UsageError: There is no such sampler.
    """
    from autotune.search.samplers.optuna_sampler import OptunaSampler
    from autotune.search.stages import Staged

    if name == PLANNER:
        return Staged(OptunaSampler("tpe"), parts=parts)
    # Ceilings are the planner's knowledge of knobs: another sampler is compared without them.
    return Staged(_sampler(name), pure_sampler=True, parts=parts.put("ceilings", present=False))


def _sampler(name: str) -> Sampler:
    from autotune.search.samplers.optuna_sampler import KINDS, OptunaSampler
    from autotune.search.samplers.plain_samplers import BruteForce, CoordinateDescent

    if name == "brute":
        return BruteForce()
    if name == "coordinate":
        return CoordinateDescent()
    if name not in KINDS:
        hint = did_you_mean(name, SAMPLERS) or f"one of: {', '.join(SAMPLERS)}"
        raise UsageError(f'there is no sampler "{name}"', hint=hint)
    return OptunaSampler(name)
