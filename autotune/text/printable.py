r"""Sanitized text of other sources, for a terminal, a report and MLflow. Standard library only.

Journals, script output, file names and the fields of a best.yaml may contain control characters (escape
sequences), bidirectional controls that reorder text, or invisible ones (zero width). They are escaped as in
JSON, ``\u001b``, so that the result is also valid inside JSON.
"""

from __future__ import annotations

import json
import unicodedata


def visible(text: str) -> str:
    """Return the text with every control and invisible character escaped; lines and tabs stay.

    Escaped is what `str.isprintable` refuses, but for blanks of any width: controls (C0, C1, DEL), format
    characters (bidirectional, zero width, tags), other line separators, and code points without a character.
    """
    if text.isprintable():
        return text
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def one_line(text: str) -> str:
    """Return the text as `visible` does, with line breaks and tabs as blanks."""
    return visible(text.replace("\n", " ").replace("\t", " "))


def _escaped(line: str) -> str:
    return "".join(c if _is_shown(c) else json.dumps(c)[1:-1] for c in line)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character == "\t" or unicodedata.category(character) == "Zs"
