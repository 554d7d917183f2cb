"""Knob families of which a search has a result. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.compare.break_even import is_late
from autotune.model.knob_families import families_of

if TYPE_CHECKING:
    from autotune.model.study import Study

_COMPILE: Final = frozenset({"compile"})


def measured(study: Study) -> frozenset[str]:
    """Return families of which a configuration was measured, or failed for a reason of its own.

    A compile that pays back only after the planned run rules its configuration out. That is no result for
    the other changes beside it.
    """
    space = study.space
    if space is None:
        return frozenset()
    found: set[str] = set()
    for trial in study.finished():
        families = families_of(space, trial.config)
        if trial.failure is not None and trial.failure.kind.teaches:
            found |= families
        elif trial.measurement is not None:
            found |= families & _COMPILE if is_late(study, trial.config) else families
    return frozenset(found)
