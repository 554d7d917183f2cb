"""Search space rebuilt from a journal, for display; errors never reach the reader."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.knobs.registry import knobs_for
from autotune.model.space import SearchSpace
from autotune.space.build_space import build_space

if TYPE_CHECKING:
    from autotune.model.facts import Facts
    from autotune.model.study import StudySpec

log = logging.getLogger(__name__)

_NOT_HERE = "This version of autotune does not have this knob."


def space_of(spec: StudySpec, facts: Facts) -> tuple[SearchSpace, dict[str, str]]:
    """Return the search space of a study on disk, rebuilt for display; never raises.

    A study of another version may name knobs that this one lacks. They are listed among the refusals, and a
    config with one of them counts as changing the training.
    """
    try:
        knobs, request = knobs_for(spec.space), spec.space
        known = replace(
            request,
            knobs={name: values for name, values in request.knobs.items() if name in knobs},
            fixed={name: value for name, value in request.fixed.items() if name in knobs},
            starts=tuple(start for start in request.starts if all(name in knobs for name in start)),
        )
        space, refusals = build_space(known, facts, knobs)
    except Exception:
        log.debug("the search space could not be built again", exc_info=True)
        return SearchSpace(dimensions={}), {}
    lost = {name: _NOT_HERE for name in (*request.knobs, *request.fixed) if name not in knobs}
    return space, {**lost, **refusals}
