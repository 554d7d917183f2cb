"""An environment in which nothing can be imported but PyTorch and the standard library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = (
    "ray",
    "optuna",
    "mlflow",
    "pydantic",
    "yaml",
    "numpy",
    "psutil",
    "rich",
    "typer",
    "scipy",
    "pynvml",
)

_SITE = f"""
from importlib.machinery import PathFinder
plain = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {FOREIGN!r} else plain(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""


def environment(folder: Path) -> dict[str, str]:
    """For a process of Python's; what makes it so is written into a folder below this one."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE)
    return {**os.environ, "PYTHONPATH": str(site)}
