"""The frame of a report: `template.html` with its stylesheet and script inside; loads nothing."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autotune.report.html.markup import Markup
from autotune.text.printable import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE: Final = Path(__file__).parent
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing is ever fetched, also not by text that a script printed."""


class Section(NamedTuple):
    """Section of the page; its heading has the id ``{name}-h``.

    Args:
        is_folded: Closed at first. A link to a heading inside opens it.
    """

    name: str
    title: str
    body: Markup
    is_folded: bool = False


def render(
    title: str,
    first: Markup,
    sections: Sequence[Section],
    footer: str,
    data_id: str,
    data: Mapping[str, Any],
    *,
    top: Sequence[object] = (),
) -> str:
    """Return the whole page.

    Args:
        title: Title of the window.
        first: Content before the sections.
        sections: Sections in order.
        footer: Last line.
        data_id: Id of the element with the figures.
        data: Figures, as JSON in the page.
        top: Parts of the line above; if given, the page has a table of contents.
    """
    # Strict JSON that cannot close its enclosing element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return visible(
        environment.get_template("template.html").render(
            policy=_POLICY,
            title=title,
            style=_asset("style.css"),
            contents=bool(top),
            top=top,
            first=first,
            sections=sections,
            footer=footer,
            data_id=data_id,
            data=Markup(text),
            script=_asset("script.js"),
        )
    )


@cache
def _asset(name: str) -> Markup:
    return Markup((_HERE / name).read_text(encoding="utf-8"))
