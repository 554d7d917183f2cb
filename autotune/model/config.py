"""Config: requested values, by knob. Standard library only; every layer may import it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

Value = bool | int | float | str
"""The values a knob can take; they survive JSON unchanged."""

FIRST_KNOBS = ("precision", "batch_size", "num_workers", "compile_mode", "accumulation")
"""Knobs listed first; others follow by name."""


def value_text(value: Value | None) -> str:
    """Return ``on`` or ``off`` for a switch, else the value as text; an empty string for None (not read)."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def in_order(values: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """Return the items in display order."""
    rank = {knob: place for place, knob in enumerate(FIRST_KNOBS)}
    return sorted(values.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0]))


def config_text(values: Mapping[str, Value]) -> str:
    """Return ``precision=bf16 num_workers=2``, or ``baseline`` for the script's own values."""
    return " ".join(f"{knob}={value_text(value)}" for knob, value in in_order(values)) or "baseline"


class Config(Mapping[str, Value]):
    """The knobs that differ from the unchanged script, and their values.

    An absent knob is not changed, so ``Config()`` is the baseline, two configs with the same effect have the
    same items, and the user's own configuration is in every space. Immutable, hashable, equal by content;
    order does not count.
    """

    __slots__ = ("_items", "_text")

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        pairs = sorted((values or {}).items())
        self._items: dict[str, Value] = dict(pairs)
        self._text: str | None = None

    def __getitem__(self, knob: str) -> Value:
        return self._items[knob]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self.canonical())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.canonical() == other.canonical()

    def __repr__(self) -> str:
        return f"Config({self._items!r})"

    def canonical(self) -> str:
        """Return the items as JSON with sorted keys; 1, 1.0 and True stay apart."""
        if self._text is None:  # kept: a search compares and hashes the same configs thousands of times
            self._text = json.dumps(self._items, sort_keys=True, allow_nan=False)
        return self._text

    @property
    def digest(self) -> str:
        """Twelve hexadecimal characters that name the content."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    @property
    def is_baseline(self) -> bool:
        """Nothing is changed."""
        return not self._items

    def with_(self, **values: Value) -> Config:
        """Return a copy with these knobs set."""
        return Config({**self._items, **values})

    def without(self, *knobs: str) -> Config:
        """Return a copy that leaves these knobs alone."""
        return Config({k: v for k, v in self._items.items() if k not in knobs})

    def text(self) -> str:
        """Return `config_text` of the items."""
        return config_text(self)
