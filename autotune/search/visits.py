"""Which configs a running process measures beside its own: what can be switched in it, and is worth it; pure.

Only what changes a single thing at a step's end is left to a visit. What a process of its own is needed
for (memory, loss, every claim) is never asked of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compare.agreement import changed, distrusted
from autotune.knobs.registry import knobs_for
from autotune.model.change import Change
from autotune.model.config import Config
from autotune.model.live import Visit
from autotune.model.objective import ENERGY
from autotune.space.choose_delivery import way

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.model.study import Study
    from autotune.search.costs import Costs

MOST = 10
"""Segments of one visit."""

WORTH = 0.7
"""A segment with its share of the anchors may cost at most this part of a process of its own."""

SHARE = 0.25
"""Of the time for screening: so much a visit may take."""

_WINDOW = 0.8
_SHORTEST_S = 1.0
_TYPICAL = 1.4
"""Times the shortest window: what windows take, some of which go on until they are tight."""
_WARM_UP_S = 0.5
_WARM_UP_STEPS = 4
_FEWEST_STEPS = 10


def visit(study: Study, wanted: Iterable[Config], costs: Costs, spare_s: float) -> Visit | None:
    """What the next process of the unchanged script goes on with, None where nothing is worth it.

    Args:
        study: As of now, its space built.
        wanted: Configs in the order in which they would be run by themselves.
        costs: Of the study.
        spare_s: Time for screening.
    """
    if not study.spec.live or study.spec.objective == ENERGY or costs.plain_s <= 0:
        return None
    configs = [config for config in wanted if is_live(study, config)]
    # What rounds otherwise alters the weights: it comes last.
    space = study.space
    if space is not None:
        configs.sort(key=lambda config: space.effect(config).rank)
    window_s = max(_SHORTEST_S, _WINDOW * costs.min_window_s)
    part_s = _part_s(study, window_s)
    if 1.5 * part_s > WORTH * costs.plain_s:
        return None
    configs = configs[:MOST]
    while configs:
        planned = Visit(configs=tuple(configs), window_s=window_s, limit_s=0.0)
        seconds = part_s * len(planned.parts())
        if 1.5 * seconds <= SHARE * spare_s:
            # Half as much again: what it was reckoned by is a guess.
            return Visit(configs=planned.configs, window_s=window_s, limit_s=1.5 * seconds)
        configs.pop()
    return None


def is_live(study: Study, config: Config, anchor: Config | None = None) -> bool:
    """Whether a process with the anchor's config can be switched to this one between two steps.

    Compiled code may have taken over what was set when it was made, so none of it is switched.
    """
    own, facts, space = anchor or Config(), study.facts, study.space
    run = None if facts is None else facts.run
    if facts is None or run is None or space is None or run.own_compile or run.without_torch:
        return False
    knobs, out = knobs_for(study.spec.space), distrusted(study)
    names = changed(own, config)
    if not names or out & set(names) or any("compile" in knob for knob in own):
        return False
    for name in names:
        knob = knobs.get(name)
        if knob is None or name not in config or knob.virtual:
            return False
        change = way(knob, config[name], facts)
        if not isinstance(change, Change) or not knob.is_live(config[name], change.spelling):
            return False
    return True


def _part_s(study: Study, window_s: float) -> float:
    """Expected seconds of a segment or anchor."""
    steps = [t.measurement.step_time_s.value for t in study.baseline if t.measurement]
    step_s = max(steps, default=0.0)
    return max(_TYPICAL * window_s, _FEWEST_STEPS * step_s) + max(_WARM_UP_S, _WARM_UP_STEPS * step_s)
