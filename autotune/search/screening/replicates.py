"""Selection of configs that need a replicate before their reading is trusted. Pure.

The largest of many noisy readings is the luckiest as much as the best. A leader with a single run is
replicated; at the end, with time left, its close followers are as well. The number of replicates depends on
the noise between runs of one config on this machine; without noise there are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.compare.amortised_rate import all_objective_runs, objective_runs
from autotune.model.run_length import useful_repeats
from autotune.statistics.intervals import expected_gain
from autotune.statistics.spread import run_spread

if TYPE_CHECKING:
    from collections.abc import Collection

    from autotune.model.config import Config
    from autotune.model.study import Study
    from autotune.search.models.throughput_model import ThroughputModel

NOISY = 0.03
"""Noise, in ln rate, from which on a single run of a config is not trusted."""

_LEADER_LOOKS = 2
_MOST_LOOKS = 3
_WORTH = 0.005


@dataclass(frozen=True, slots=True)
class Replicate:
    """A config to be replicated.

    Args:
        config: Config to run.
        runs: Number of its runs so far.
        run_sd: Standard deviation between runs of one config, in ln rate.
        gain: Expected gain of the recommendation from the replicate, in ln rate.
    """

    config: Config
    runs: int
    run_sd: float
    gain: float


def run_sd(study: Study, *, in_cycles: bool = False) -> float:
    """Return the standard deviation of single screening runs of one config, in ln rate.

    Pooled over configs that ran more than once, the script included, with a prior of two percent that counts
    as two runs.

    Args:
        study: Current study.
        in_cycles: Include the runs of confirmation and ablation.
    """
    phases = all_objective_runs(study) if in_cycles else (objective_runs(study),)
    # Finalists were chosen for their screening runs: their regression is no noise.
    alike = [values for runs in phases for values in runs.values()]
    return run_spread([math.log(v) for v in values if v > 0.0] for values in alike)


def leading(model: ThroughputModel, among: Collection[Config]) -> Config:
    """Return the config with the highest prediction."""
    return max(among, key=lambda c: (model.predict(c)[0], c.canonical()))


def look_again(
    study: Study, model: ThroughputModel, among: Collection[Config], *, at_end: bool
) -> Replicate | None:
    """Return the config to be replicated; None if no replicate is worth its time.

    Args:
        study: Current study.
        model: Throughput model of the study.
        among: Measured configs that may be recommended.
        at_end: Nothing new is left to try: also consider the followers of the leader.
    """
    if not among:
        return None
    # One process of a short script times few steps, so the leader's runs are pooled.
    sd, repeats = run_sd(study), useful_repeats(study)
    if sd < NOISY and repeats < _LEADER_LOOKS:
        return None
    leader = leading(model, among)
    runs = {c: sum(1 for t in study.trials if t.config == c and not t.group) for c in among}
    limit = _MOST_LOOKS if at_end else max(_LEADER_LOOKS, min(repeats, _MOST_LOOKS))
    doubts = model.doubting(sd)
    best: Replicate | None = None
    for config in among:
        # Of the two, the one with fewer runs is more informative.
        again = config if at_end and runs[config] < runs[leader] else leader
        if config == leader or runs[again] >= limit:
            continue
        gain = expected_gain(*doubts.difference(model.point(config), model.point(leader)))
        if gain >= _WORTH and (best is None or gain > best.gain):
            best = Replicate(again, runs[again], sd, gain)
    return best
