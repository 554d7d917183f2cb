"""Manual changes of a best.yaml since its search wrote it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from autotune.export.parts import SCHEMA, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.export.parts import BestConfig

_MOST_NAMED: Final = 3
_LONGEST: Final = 60


def edited(best: BestConfig, original: BestConfig | None = None) -> str:
    """Return what was changed since the search wrote this file, as a clause, or "".

    The digest is no signature: a forged file can have a correct one. It covers the schema of this version,
    so files of other versions are not checked.

    Args:
        best: The file.
        original: Copy that the search stored, if it is on this machine.
    """
    written = best.provenance.digest
    if best.schema_ != SCHEMA or written == digest(best):
        return ""
    if not written:
        return "it has no digest, so later edits cannot be detected"
    changes = [] if original is None else list(_changes(original.data(), best.data()))
    if not changes:
        return f"it was edited after the search: its digest is {digest(best)}, the recorded one {written}"
    more = f", and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return f"it was edited after the search: {', '.join(changes[:_MOST_NAMED])}{more}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    was, now = dict(_flat(before)), dict(_flat(after))
    for name in dict.fromkeys((*was, *now)):
        if was.get(name) != now.get(name):
            yield f"{name} is {_short(now.get(name))}, was {_short(was.get(name))}"


def _flat(data: Any, at: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value of nested data with its dotted path."""
    if isinstance(data, dict) and data:
        for key, value in cast("dict[str, Any]", data).items():
            yield from _flat(value, f"{at}.{key}" if at else key)
    elif isinstance(data, list) and data:
        for index, value in enumerate(cast("list[Any]", data)):
            yield from _flat(value, f"{at}.{index}")
    else:
        yield at, data


def _short(value: object) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
