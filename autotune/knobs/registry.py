"""All knobs by name: the built-in ones, and those that installed packages add.

A built-in knob is a class in a module ``autotune/knobs/<group>/<name>.py`` of its own name; no list names it.
Another package adds a knob by an entry point in the group ``autotune.knobs`` that names its
`Knob` class. Those are loaded on first use.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autotune.errors import UsageError
from autotune.knobs.base import Knob
from autotune.knobs.declared import declared_knob
from autotune.model.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autotune.model.study import SpaceRequest

ENTRY_POINTS: Final = "autotune.knobs"
_FOLDERS: Final = (str(Path(__file__).parent),)


@functools.cache
def builtin() -> Mapping[str, Knob]:
    """Return every knob by name, in order of expected gain per cost; knobs of other packages last.

    Raises:
        UsageError: Two knobs have one name, or an installed package's entry point is no knob.
    """
    return MappingProxyType(named([*_shipped(), *_installed()]))


def knobs_for(request: SpaceRequest) -> Mapping[str, Knob]:
    """Return every knob of a study of this space: `builtin`, then those that the space declares.

    A declared knob replaces a built-in one of the same name, which may be newer than the study.
    """
    declared = [*request.declared, *(spec for each in request.candidates for spec in each.declared)]
    if not declared:
        return builtin()
    return MappingProxyType({**builtin(), **{spec.name: declared_knob(spec) for spec in declared}})


def needs_permission(knob: Knob) -> bool:
    """Return whether the user must allow the knob by name, because it changes the training."""
    return knob.effect is Effect.TRAINING and not knob.permission


def named(knobs: Iterable[Knob]) -> dict[str, Knob]:
    """Return knobs by their names, in the order given.

    Raises:
        UsageError: Two of them have the same name.
    """
    found: dict[str, Knob] = {}
    for knob in knobs:
        if knob.name in found:
            both = " and ".join(type(k).__module__ for k in (found[knob.name], knob))
            message = f'two knobs are called "{knob.name}": in {both}'
            raise UsageError(message, hint="Remove one of the packages, or rename its knob.")
        found[knob.name] = knob
    return found


def _shipped() -> list[Knob]:
    """Return the knob of each module of this package that has one, by `rank`."""
    groups = [f"{__package__}.{found.name}" for found in pkgutil.iter_modules(_FOLDERS) if found.ispkg]
    names = [
        f"{group}.{found.name}"
        for group in groups
        for found in pkgutil.iter_modules(importlib.import_module(group).__path__)
    ]
    kinds = [
        kind
        for name in names
        for kind in vars(importlib.import_module(name)).values()
        if isinstance(kind, type)
        and issubclass(kind, Knob)
        and kind.__module__ == name
        and "name" in vars(kind)
    ]
    return [kind() for kind in sorted(kinds, key=lambda kind: (kind.rank, kind.name))]


def _installed() -> list[Knob]:
    knobs: list[Knob] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            kind = point.load()
        except Exception as error:
            message = f'the knob "{point.name}" ({point.value}) cannot be loaded: {error}'
            raise UsageError(message, hint="Repair or remove the package that offers it.") from error
        if not (isinstance(kind, type) and issubclass(kind, Knob)):
            message = f'the entry point "{point.name}" ({point.value}) is not a Knob class'
            raise UsageError(message, hint="It must name a subclass of autotune.knobs.base.Knob.")
        knobs.append(kind())
    return knobs
