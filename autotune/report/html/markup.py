"""Pieces of HTML; text is escaped unless it is `Markup`."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is valid HTML."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it unescaped, for templates."""
        return self


def html(*parts: object) -> Markup:
    """Join the parts; plain text is escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(str(p)) for p in parts))


def tag(name: str, *parts: object, **attributes: object) -> Markup:
    """Return an element.

    ``class_`` becomes ``class``, ``data_v`` becomes ``data-v``; None and False are omitted.
    """
    shown = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        shown += f" {word}" if value is True else f' {word}="{escape(str(value))}"'
    return Markup(f"<{name}{shown}>{html(*parts)}</{name}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a table.

    Args:
        title: Text of the head.
        is_number: Align to the right.
        is_wide: The column holds a configuration.
    """

    title: str
    is_number: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Sorted:
    """Cell that is sorted by another value than its text."""

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
    """Return a table that scrolls by itself; the first cell of a row is its head.

    Args:
        columns: Columns in order.
        rows: Cells, as many as columns.
        caption: Description of the table.
        sorts: Make the heads buttons where scripts run.
        cards: Show each row as a card on a phone, without scrolling sideways.
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
    # A card shows the cell beside its column's title, as one element.
    shown = tag("span", shown) if isinstance(shown, Markup) and shown else shown
    return tag("td", shown, class_=names or None, data_label=column.title, data_v=by)


def command(text: str) -> Markup:
    """Return a command in a box of its own."""
    return tag("div", tag("pre", tag("code", text)), class_="run")


def bullets(items: Iterable[object], *, class_: str | None = None) -> Markup:
    """Return a list; empty without items."""
    rows = [tag("li", item) for item in items]
    return tag("ul", *rows, class_=class_) if rows else Markup()


def paragraphs(*texts: object, class_: str | None = None) -> Markup:
    """Return one paragraph for each text that is not empty."""
    return html(*(tag("p", text, class_=class_) for text in texts if text))


def heading(name: str, title: str, lead: object = "") -> Markup:
    """Return the head of a section, labelled by ``{name}-h``, with an optional lead below."""
    return html(tag("h2", title, id=f"{name}-h"), tag("p", lead, class_="soft") if lead else Markup())
