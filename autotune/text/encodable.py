"""Texts valid in UTF-8, as required by SQLite, MLflow and all files of autotune."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def writable(text: str) -> str:
    """Return the text with lone surrogates (from file names that are not UTF-8) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def writable_json(text: str) -> str:
    """Return the same for JSON: what is read from it can be written down as well."""
    return _SURROGATE.sub(lambda m: f"\\\\u{ord(m.group()):04x}", text)
