"""Every command that a message suggests has a verb and options that exist."""

import ast
import re
from pathlib import Path

import pytest

from autotune.cli.main import _command

PACKAGE = Path(__file__).parents[2] / "autotune"
SUGGESTED = re.compile(r"(?<![\w./-])autotune ([a-z]+)((?: (?:--?[A-Za-z][\w-]*|[\w./=,:-]+))*)")
PROSE = {
    "wrote",
    "service",
    "comes",
    "runs",
    "sets",
    "and",
    "as",
    "can",
    "does",
    "has",
    "in",
    "is",
    "knows",
    "on",
    "or",
    "takes",
    "that",
    "to",
    "uses",
    "with",
}
"""Words after the program's name in sentences about it."""


def texts(path):
    """Line and text of every string of a file that is no docstring; parts filled in later read `X`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values),
            )
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docs | inside:
            yield node.lineno, node.value


def suggestions():
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts(path):
            for found in SUGGESTED.finditer(text):
                if found[1] not in PROSE:
                    yield f"{path.relative_to(PACKAGE)}:{line}", found[1], found[2].split()


def hints(source):
    """Values of ``hint=`` in calls, as one text each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            constants = [part.value if isinstance(part, ast.Constant) else "X" for part in parts]
            yield "".join(text for text in constants if isinstance(text, str))


def abbreviated(source):
    return [text for text in hints(source) if re.search(r" \.\.\.|\[--", text)]


def test_a_suggested_command_is_whole():
    found = {path.name: abbreviated(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert abbreviated('f(hint="-- python train.py ...")') == ["-- python train.py ..."]


ROWS = list(suggestions())


def test_there_are_suggestions_to_check():
    assert len(ROWS) > 40


@pytest.mark.parametrize(("place", "verb", "words"), ROWS, ids=[f"{p}:{v}" for p, v, _ in ROWS])
def test_a_suggested_command_exists(place, verb, words):
    commands = _command().commands
    assert verb in commands, f"{place}: autotune {verb}"
    command = commands[verb]
    if getattr(command, "commands", None) and words:
        command = command.commands[words[0]]
    known = {"--help", "-h"} | {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    typed = words[: words.index("--")] if "--" in words else words
    unknown = [w for w in typed if w.startswith("-") and w.partition("=")[0].rstrip(".,;:") not in known]
    assert not unknown, f"{place}: autotune {verb} {' '.join(words)}"
