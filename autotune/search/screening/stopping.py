"""The stopping rule: ends screening if it will find nothing more, or if more would not pay; pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.compare.transfer import beliefs
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.search.screening.acquisition import score
from autotune.search.screening.candidates import candidate_pool
from autotune.search.screening.refinement import FRONT
from autotune.search.screening.replication import AGAIN
from autotune.search.screening.state import HELPS

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.search.screening.state import SearchState

PATIENCE = 8
"""Refining runs without an improvement that are allowed in any space."""


def no_progress(search: SearchState, patience: int) -> bool:
    """Return whether the last refine trials brought nothing new."""
    # Replicates and runs for less memory do not search for speed.
    others = (AGAIN, FRONT)
    finished = [
        t for t in search.study.finished(Stage.INITIAL, Stage.REFINE) if not t.reason.startswith(others)
    ]
    refined = [t for t in finished if t.stage is Stage.REFINE]
    if len(refined) < patience:
        return False
    last = {t.number for t in refined[-patience:]}
    recent = {t.config for t in refined[-patience:]} - {t.config for t in finished if t.number not in last}
    before = max((y for c, y in search.model.seen.items() if c not in recent), default=0.0)
    return max((search.model.seen.get(c, -math.inf) for c in recent), default=before) <= before + HELPS


def whole_patience(search: SearchState) -> int:
    """Return the patience, extended by as many runs as results of earlier studies used."""
    patience = _patience(search)
    return patience + patience // 2 if beliefs(search.study).first else patience


def on_its_own(search: SearchState) -> SearchState:
    """Return the state without earlier studies if they led nowhere for half of the patience."""
    if search.model is search.own or not no_progress(search, _patience(search) // 2):
        return search
    return replace(search, model=search.own)


def too_dear(search: SearchState) -> str:
    """Return why another run does not pay for the given length of the real run; else empty.

    A length from the script's own options covers one run; the number of later runs is unknown.
    """
    steps, times = search.study.spec.run_steps, _step_times(search.study)
    if not steps or not times or search.study.spec.objective == ENERGY:
        return ""
    best = search.best_training_preserving()
    planned_s = steps * statistics.fmean(times) / math.exp(max(0.0, best))
    pool = candidate_pool(search)
    wild = [
        c for c in pool if not search.training_preserving(c) and search.permitted(c) and not search.refused(c)
    ]
    bar = max((y for c, y in search.model.seen.items() if not search.refused(c)), default=0.0)
    scored = [*score(search, filter(search.training_preserving, pool), best), *score(search, wild, bar)]
    options = [
        (planned_s * -math.expm1(-gain) - search.costs.screening(config), gain, config)
        for _, gain, config in scored
    ]
    if not options:
        return ""
    worth_s, gain, config = max(options, key=lambda o: (o[0], o[2].canonical()))
    if worth_s > 0.0:
        return ""
    saved_s, cost_s = planned_s * -math.expm1(-gain), search.costs.screening(config)
    return (
        f"another run takes {cost_s:.0f} s and is expected to save {saved_s:.0f} s "
        f"of the {steps} steps planned"
    )


def _step_times(study: Study) -> list[float]:
    return [t.measurement.step_time_s.value for t in study.baseline if t.measurement]


def _patience(search: SearchState) -> int:
    """Return the number of refining runs without an improvement after which refinement ends."""
    return max(PATIENCE, 2 * len(search.space.free()))
