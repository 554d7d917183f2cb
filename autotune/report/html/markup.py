"""Pieces of HTML; whatever is not marked as markup is text and is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it unescaped, for templates."""
        return self


def html(*parts: object) -> Markup:
    """The parts one after the other, escaped where they are plain."""
    return Markup("".join(p if isinstance(p, Markup) else escape(str(p)) for p in parts))


def tag(name: str, *parts: object, **attributes: object) -> Markup:
    """An element; ``class_`` stands for ``class``, ``data_v`` for ``data-v``, None and False for none."""
    shown = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        shown += f" {word}" if value is True else f' {word}="{escape(str(value))}"'
    return Markup(f"<{name}{shown}>{html(*parts)}</{name}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Args:
        title: What its head says.
        is_number: Right-aligned.
        is_wide: Holds a configuration.
    """

    title: str
    is_number: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Sorted:
    """A cell that is ordered by another value than what it shows."""

    shown: object
    by: float | str


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    sorts: bool = False,
    cards: bool = True,
) -> Markup:
    """A table that scrolls by itself; the first cell of a row is its head.

    Args:
        columns: In order.
        rows: Cells, as many as columns.
        caption: Says what it holds.
        sorts: Its heads become buttons where scripts run.
        cards: On a phone each row is a card instead of a line to be scrolled along.
    """
    head = html(*(tag("th", c.title, scope="col", class_="n" if c.is_number else None) for c in columns))
    body = html(*(tag("tr", *_cells(columns, row, cards=cards)) for row in rows))
    names = " ".join(name for name, wanted in (("sorts", sorts), ("cards", cards)) if wanted)
    return tag(
        "div",
        tag(
            "table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body), class_=names
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _cells(columns: Sequence[Column], row: Sequence[object], *, cards: bool) -> list[Markup]:
    pairs = zip(columns, row, strict=True)
    return [_cell(column, cell, i, cards=cards) for i, (column, cell) in enumerate(pairs)]


def _cell(column: Column, cell: object, index: int, *, cards: bool) -> Markup:
    shown, by = (cell.shown, cell.by) if isinstance(cell, Sorted) else (cell, None)
    names = " ".join(name for name, is_so in (("n", column.is_number), ("cfg", column.is_wide)) if is_so)
    if index == 0:
        return tag("th", shown, scope="row", class_=names or None, data_v=by)
    if not cards:
        return tag("td", shown, class_=names or None, data_v=by)
    # In a card it stands beside its column's title, as one piece.
    shown = tag("span", shown) if isinstance(shown, Markup) and shown else shown
    return tag("td", shown, class_=names or None, data_label=column.title, data_v=by)


def command(text: str) -> Markup:
    """A command to be typed, in a box of its own."""
    return tag("div", tag("pre", tag("code", text)), class_="run")


def bullets(items: Iterable[object], *, class_: str | None = None) -> Markup:
    """A list; nothing where it is empty."""
    rows = [tag("li", item) for item in items]
    return tag("ul", *rows, class_=class_) if rows else Markup()


def paragraphs(*texts: object, class_: str | None = None) -> Markup:
    """One paragraph for each text that is not empty."""
    return html(*(tag("p", text, class_=class_) for text in texts if text))


def heading(name: str, title: str, lead: object = "") -> Markup:
    """The head of a section, which is labelled by ``{name}-h``; below it what it shows, in soft letters."""
    return html(tag("h2", title, id=f"{name}-h"), tag("p", lead, class_="soft") if lead else Markup())
