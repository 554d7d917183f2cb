"""Interpreter in a script's first line, and the function of an installed console script."""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_HEAD_BYTES: Final = 64 * 1024
_PYTHON: Final = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*t?")
_LONG: Final = re.compile(r"""^'''exec' (?:"(?P<quoted>[^"]+)"|(?P<bare>\S+)) "\$0" "\$@"$""")
"""Installers' form for an interpreter path too long for a first line, or with a space."""


def written_interpreter(path: Path) -> list[str] | None:
    """Return interpreter and options in a script's first line: ``["/venv/bin/python", "-u"]``.

    Returns:
        An empty list for text without such a line; None if it is not a Python script.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return []
    if b"\0" in head:
        return None
    lines = head.decode(errors="replace").splitlines()
    if not lines or not lines[0].startswith("#!"):
        return []
    words = _words(lines[0][2:].strip())
    if words[:1] == ["/bin/sh"] and len(lines) > 1 and (long := _LONG.match(lines[1])):
        words = [long["quoted"] or long["bare"]]
    return words if words and _PYTHON.fullmatch(words[0]) else None


def _words(line: str) -> list[str]:
    program, _, rest = line.partition(" ")
    if not program.endswith("/env"):
        # The kernel passes the rest of the line as one word.
        return [program, rest.strip()] if rest.strip() else [program]
    try:
        words = shlex.split(rest)
    except ValueError:
        return []
    return words[1:] if words[:1] in (["-S"], ["--split-string"]) else words[:1]


def wrapped_module(path: Path) -> str:
    """Return the module of a console script's function; empty if it is not a console script.

    Installers write ``from package.cli import main`` and ``sys.exit(main())``.
    """
    try:
        tree = ast.parse(path.read_bytes()[:_HEAD_BYTES])
    except (OSError, SyntaxError, ValueError):
        return ""
    imported = {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit" and len(node.args) == 1:
            called = node.args[0]
            if isinstance(called, ast.Call) and not called.args and not called.keywords:
                return imported.get(ast.unparse(called.func).partition(".")[0], "")
    return ""
