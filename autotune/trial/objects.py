"""Objects of the script's, which may answer any question with any error. Standard library only."""

from __future__ import annotations

from typing import Any, Final

WIDE: Final = 16
"""So many members of a list or of a mapping are looked at."""


def attribute_of(item: Any, name: str) -> Any:
    """An attribute, None where there is none or the object does not say."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def held_by(item: Any) -> dict[str, Any]:
    """What an object of the script's holds in itself; some answer questions about it with any error."""
    return dict(attribute_of(item, "__dict__") or {})


def length_of(sized: Any, default: Any) -> Any:
    """How long it is, or the default where it does not say."""
    try:
        return len(sized)
    except Exception:
        return default
