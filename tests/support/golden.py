"""Texts that people see, kept as files. ``UPDATE_GOLDEN=1 pytest ...`` writes them anew."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def check(name: str, text: str) -> None:
    """Compare with ``tests/golden/<name>``."""
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
