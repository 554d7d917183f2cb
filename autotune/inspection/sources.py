"""The user's own source files: the script, and modules beside it that it imports. Nothing is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FILES: Final = 20
_MOST_BYTES: Final = 2 * 1024 * 1024


def sources(script: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The script, then its own modules beside it, breadth first; what is no Python is left out."""
    waiting, seen = [script], set[Path]()
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        tree = _tree(file)
        if tree is None:
            continue
        yield file, tree
        waiting += [m for m in _own_modules(tree, script.parent) if m not in seen]


def shown(file: Path, folder: Path) -> str:
    """A file as it lies relative to the script's folder."""
    try:
        return str(file.relative_to(folder))
    except ValueError:
        return file.name


def _tree(file: Path) -> ast.Module | None:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _own_modules(tree: ast.Module, folder: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            path = folder.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file
