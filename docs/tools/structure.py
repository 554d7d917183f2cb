"""Prints the size and shape of the package as a Markdown table: ``python docs/tools/structure.py [FOLDER]``.

A row per top-level package: files, lines, most files in one folder, longest function, longest class, and the
longest chain of imports that begins in the package.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "autotune").resolve()


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(FOLDER.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(FOLDER.rglob("*.py"))}


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that a module imports when it is loaded."""
    found: set[str] = set()
    for node in tree(FILES[module]).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in FILES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found & FILES.keys() - {module})


@cache
def depth(module: str) -> int:
    """Return the length of the longest chain of imports from a module."""
    return 1 + max(map(depth, imports(module)), default=0)


def longest(modules: list[str], kinds: tuple[type, ...]) -> str:
    """Return the lines and name of the longest node of these kinds; empty if there is none."""
    found = [
        (node.end_lineno - node.lineno + 1, node.name)
        for module in modules
        for node in ast.walk(tree(FILES[module]))
        if isinstance(node, kinds)
    ]
    return "{} `{}`".format(*max(found)) if found else ""


def main() -> None:
    """Print the table."""
    packages: dict[str, list[str]] = {}
    for module, path in FILES.items():
        parts = path.relative_to(FOLDER).parts
        packages.setdefault(parts[0] if len(parts) > 1 else "(root)", []).append(module)
    print("| package | files | lines | most in a folder | longest function | longest class | import depth |")
    print("|---|---|---|---|---|---|---|")
    for package, modules in sorted(packages.items()):
        files = [FILES[module] for module in modules]
        lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        most = max(Counter(file.parent for file in files if file.name != "__init__.py").values(), default=0)
        function = longest(modules, (ast.FunctionDef, ast.AsyncFunctionDef))
        cells = (package, len(files), f"{lines:,}", most, function, longest(modules, (ast.ClassDef,)))
        print(f"| {' | '.join(map(str, cells))} | {max(map(depth, modules))} |")
    total = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in FILES.values())
    print(f"| **all** | {len(FILES)} | {total:,} | | | | {max(map(depth, FILES))} |")


if __name__ == "__main__":
    main()
