"""Which config deserves another run before it is believed? Pure.

The largest of many noisy readings is the luckiest as much as the best. Who leads by one run is run
again, and at the end, with time left, whoever may lie before the leader; how often, what runs of one
and the same config differ by on this machine decides. On a quiet one nothing is run twice.
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
"""From where on one run of a config is not taken for what the config does, in ln rate."""

_LEADER_LOOKS = 2
_MOST_LOOKS = 3
_WORTH = 0.005


@dataclass(frozen=True, slots=True)
class Replicate:
    """A config to be run once more.

    Args:
        config: Which.
        runs: It had so far.
        run_sd: What single runs of one config differ by, in ln rate.
        gain: What the recommendation is expected to gain by knowing it well, in ln rate.
    """

    config: Config
    runs: int
    run_sd: float
    gain: float


def run_sd(study: Study, *, in_cycles: bool = False) -> float:
    """Standard deviation of single screening runs of one config, in ln rate.

    Pooled over configs that ran more than once, the script itself among them, with two runs' worth of
    belief in two per cent.

    Args:
        study: As of now.
        in_cycles: By the runs of confirmation and ablation as well.
    """
    phases = all_objective_runs(study) if in_cycles else (objective_runs(study),)
    # Who is confirmed was chosen for its screening runs: by how much it falls back is no scatter.
    alike = [values for runs in phases for values in runs.values()]
    return run_spread([math.log(v) for v in values if v > 0.0] for values in alike)


def leading(model: ThroughputModel, among: Collection[Config]) -> Config:
    """Whom the model holds for the fastest of them."""
    return max(among, key=lambda c: (model.predict(c)[0], c.canonical()))


def look_again(
    study: Study, model: ThroughputModel, among: Collection[Config], *, at_end: bool
) -> Replicate | None:
    """Who is to be run once more, None where that is worth no run.

    Args:
        study: As of now.
        model: Of it.
        among: Measured configs that may be recommended.
        at_end: Nothing new is left to be tried: those behind the leader are looked at as well.
    """
    if not among:
        return None
    # One process of a short script times few steps, so the leader's runs are pooled.
    sd, repeats = run_sd(study), useful_repeats(study)
    if sd < NOISY and repeats < _LEADER_LOOKS:
        return None
    leader = leading(model, among)
    asked = {c: sum(1 for t in study.trials if t.config == c and not t.group) for c in among}
    limit = _MOST_LOOKS if at_end else max(_LEADER_LOOKS, min(repeats, _MOST_LOOKS))
    doubts = model.doubting(sd)
    best: Replicate | None = None
    for config in among:
        # Of the two, who ran less often tells more.
        again = config if at_end and asked[config] < asked[leader] else leader
        if config == leader or asked[again] >= limit:
            continue
        gain = expected_gain(*doubts.difference(model.point(config), model.point(leader)))
        if gain >= _WORTH and (best is None or gain > best.gain):
            best = Replicate(again, asked[again], sd, gain)
    return best
