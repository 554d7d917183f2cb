"""Reads an HTML page as strictly as a person who depends on its structure would want it to be."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    pieces: list[str | Element] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text below it, in order."""
        return "".join(p if isinstance(p, str) else p.text for p in self.pieces)

    def all(self, *tags: str) -> list[Element]:
        """Every element below it of these kinds, in order."""
        found: list[Element] = []
        for child in self.children:
            if not tags or child.tag in tags:
                found.append(child)
            found += child.all(*tags)
        return found

    def by_id(self, name: str) -> Element:
        (found,) = [e for e in self.all() if e.attributes.get("id") == name]
        return found

    def by_class(self, name: str) -> list[Element]:
        return [e for e in self.all() if name in e.attributes.get("class", "").split()]


class _Reader(HTMLParser):
    """Fails where an element is not closed as it was opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"an attribute twice in {tag}"
        element = Element(tag, {k: v or "" for k, v in attrs})
        self.open[-1].children.append(element)
        self.open[-1].pieces.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].pieces.append(data)


def read(page: str) -> Element:
    """The page as a tree."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root], "an element is never closed"
    return reader.root


def data(page: str) -> dict:
    """The figures that lie in the page."""
    return json.loads(read(page).by_id("autotune-report").text, parse_constant=lambda word: 1 / 0)
