"""The reference of all knobs as Markdown, made from their classes: ``python -m autotune.testing.reference``.

A row says nothing that the class does not say: its docstring, its attributes, its values under
example facts, and the sentences with which it refuses.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.core.change import Constant, Env, Flag, Keyword, Patch, Spelling
from autotune.knobs.frameworks import DEEPSPEED
from autotune.knobs.registry import builtin
from autotune.testing.knobs import example_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.config import Value
    from autotune.knobs.base import Knob

_HEAD: Final = """\
# Knobs

Made from the knobs' own files by `nox -s reference`; a test fails where this page is not current. In order of
expected gain per cost of trying.

- **Values** are those tried for small example loops, on a CPU with 4 cores and on one H200. What is tried for
  a script follows from the script and the machine; `asis` always means what the script has.
  `autotune inspect train.py` shows yours.
- **Effect**: EXACT leaves the arithmetic of a sample alone and may win `safe`; NUMERIC rounds otherwise and
  has to pass the loss guard for `best`; TRAINING changes what is learnt and can win `fastest` alone. All
  of the last but the effective batch take part only where `--allow NAME` says so.
- **Applied by**: the first way that the script accepts. Every knob is read back in the running process.

| Knob | What it does | Values | Effect | Applied by | Refused when | Source |
| --- | --- | --- | --- | --- | --- | --- |
"""
_FEWEST_WORDS: Final = 4
_MOST_VALUES: Final = 14


def reference() -> str:
    """The whole page: a row for every knob of this package."""
    own = [knob for knob in builtin().values() if type(knob).__module__.startswith("autotune.knobs.")]
    return _HEAD + "".join(f"{_row(knob)}\n" for knob in own)


def _row(knob: Knob) -> str:
    said = _parts(knob)
    unit = "" if said["Unit"] in ("", "none", "on or off") else f" ({said['Unit']})"
    cells = (
        f"`{knob.name}`",
        said["what"],
        ", ".join(f"`{value}`" for value in values(knob)) + unit,
        said["Effect"],
        "; ".join(_way(spelling) for spelling in knob.spellings) or f"through {', '.join(knob.brings)}",
        "<br>".join(refusals(knob)) or "-",
        said["Source"],
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("``", "`") for cell in cells) + " |"


def _parts(knob: Knob) -> dict[str, str]:
    """The docstring: what it does, and what stands behind ``Effect:``, ``Unit:`` and ``Source:``."""
    text = " ".join(inspect.cleandoc(type(knob).__doc__ or "").split())
    found = re.fullmatch(r"(.*?) ?Effect: (.*?)\.? Unit: (.*?)\.? Source: (.*?)\.?", text)
    if found is None:
        message = f"the docstring of {knob.name} has no Effect, Unit and Source, in this order"
        raise ValueError(message)
    return dict(zip(("what", "Effect", "Unit", "Source"), found.groups(), strict=True))


def values(knob: Knob) -> list[Value]:
    """What is tried under any of the example facts."""
    found: dict[tuple[type, Value], Value] = {}
    for facts in example_facts():
        if knob.refuse(facts) is None:
            found.update({(type(value), value): value for value in knob.domain(facts)})
    numbers = [v for v in found.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    every: list[Value] = sorted(numbers) if len(numbers) == len(found) else list(found.values())
    return every[:_MOST_VALUES]


def _way(spelling: Spelling) -> str:
    match spelling:
        case Flag():
            return f"the script's option `{spelling.names[0]}` or the like"
        case Env():
            return f"the variable `{spelling.name}`"
        case Keyword() if spelling.target == DEEPSPEED:
            return f"`{spelling.name}` in DeepSpeed's configuration"
        case Keyword():
            return f"`{spelling.target}({spelling.name}=...)`"
        case Constant():
            return f"a constant of its source called `{spelling.names[0]}` or the like"
        case Patch():
            return "code of ours in the process"


def refusals(knob: Knob) -> list[str]:
    """Every sentence with which it says no, or that it could change nothing."""
    seen: set[object] = set()
    found: dict[str, None] = {}
    for name in ("refuse", "idle", "settle"):
        found.update(dict.fromkeys(_sentences(getattr(type(knob), name), type(knob), seen)))
    return list(found)


def _sentences(function: Any, owner: type, seen: set[object]) -> Iterator[str]:
    """Sentences in a function, and in functions of knobs that it calls."""
    if function in seen or not getattr(function, "__module__", "").startswith("autotune.knobs"):
        return
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    known = function.__globals__
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, (ast.Expr, ast.JoinedStr)):
            # A docstring is no refusal, and the pieces of a formatted sentence are none of their own.
            skipped.update(ast.walk(node) if isinstance(node, ast.JoinedStr) else [node.value])
        text = _text(node, known)
        if text is not None and _is_sentence(text):
            yield text
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and inspect.isfunction(known.get(called.id)):
                yield from _sentences(known[called.id], owner, seen)
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                method = getattr(owner, called.attr, None) if called.value.id == "self" else None
                if inspect.isfunction(method):
                    yield from _sentences(method, owner, seen)


def _text(node: ast.AST, known: dict[str, Any]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else _shown(v, known) for v in node.values)
    if isinstance(node, ast.Name) and isinstance(known.get(node.id), str):
        return known[node.id]
    return None


def _shown(node: ast.AST, known: dict[str, Any]) -> str:
    """A constant of the module by its text; what is known only when it is said as dots."""
    name = node.value if isinstance(node, ast.FormattedValue) else None
    text = known.get(name.id) if isinstance(name, ast.Name) else None
    return text if isinstance(text, str) else "..."


def _is_sentence(text: str) -> bool:
    # A name such as torch.compile may come first.
    return text.endswith(".") and len(text.split()) >= _FEWEST_WORDS and (text[0].isalpha() or text[0] == ".")


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or to stdout."""
    if arguments:
        Path(arguments[0]).write_text(reference(), encoding="utf-8")
    else:
        sys.stdout.write(reference())


if __name__ == "__main__":
    main(sys.argv[1:])
