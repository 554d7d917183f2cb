"""The user's source files: the script, and modules beside it that it imports. No code is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FILES: Final = 20
_MOST_BYTES: Final = 2 * 1024 * 1024


def sources(script: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the script, then its own modules beside it, breadth first; non-Python files are left out."""
    package = _package(script)
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
        waiting += [m for m in _own_modules(tree, file, script.parent, package) if m not in seen]


def shown(file: Path, folder: Path) -> str:
    """Return a file's path relative to the script's folder."""
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


def _package(script: Path) -> Path | None:
    """Return the folder of the outermost package around the script; None without one."""
    folder, found = script.parent, None
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder, found = folder.parent, folder
    return found


def _own_modules(tree: ast.Module, file: Path, folder: Path, package: Path | None) -> Iterator[Path]:
    """Yield files of imports: beside the script, relative to the file, in the script's package."""
    for node in ast.walk(tree):
        names, base = list[str](), folder
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(f"{start}{a.name}" for a in node.names)]
            if node.level:
                base = file.parents[min(node.level, len(file.parents)) - 1]
        for name in names:
            places = [base.joinpath(*name.split("."))]
            # A package in an environment is among all others, which are not the user's.
            if package is not None and base is folder and name.split(".")[0] == package.name:
                places.append(package.parent.joinpath(*name.split(".")))
            for path in places:
                for found in (path.with_suffix(".py"), path / "__init__.py"):
                    if found.is_file():
                        yield found
