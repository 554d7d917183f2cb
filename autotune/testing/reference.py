"""The reference of all knobs as Markdown: ``python -m autotune.testing.reference docs/knobs.md``.

Every text comes from a knob's class: its docstring, its attributes, its values under example facts, and the
sentences with which it refuses.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.knobs.frameworks import DEEPSPEED
from autotune.knobs.registry import builtin
from autotune.model.change import Constant, Env, Flag, Keyword, Launcher, Patch, Spelling
from autotune.testing.knobs import example_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.knobs.base import Knob
    from autotune.model.config import Value

_HEAD: Final = """\
# Knobs

A knob is one setting that autotune can change in a training script. This page has one section per knob, in
the order of expected gain per cost. `autotune inspect train.py` lists those of your own script.

The page is generated from the source by `nox -s reference`.

| Entry | Meaning |
|---|---|
| Values | searched for example scripts on a 4-core CPU and one H200; yours depend on script and machine |
| Effect EXACT | the arithmetic of a sample is unchanged; allowed in every pick |
| Effect NUMERIC | results differ by rounding; allowed in `best` and `fastest` after the loss guard |
| Effect TRAINING | the training changes; allowed in `fastest`; `--allow NAME`, except for `effective_batch` |
| Delivery | how a value reaches the script: the first way that the script accepts |
| Refused when | conditions under which the knob is not varied; "..." is a name or number of your script |

A value counts only after it was read back from the running process.

"""
_FEWEST_WORDS: Final = 4
_MOST_VALUES: Final = 14


def reference() -> str:
    """Return the whole page: an index and a section for every knob of this package."""
    own = [knob for knob in builtin().values() if type(knob).__module__.startswith("autotune.knobs.")]
    rows = [f"| [`{knob.name}`](#{knob.name}) | {_title(knob)} | {knob.effect.name} |" for knob in own]
    index = ["| Knob | Sets | Effect |", "|---|---|---|", *rows]
    return _HEAD + "\n".join([*index, *(line for knob in own for line in _section(knob))]) + "\n"


def _title(knob: Knob) -> str:
    """Return the first clause of the description."""
    title = re.split(r"[:.] ", f"{_parts(knob)['what']} ", maxsplit=1)[0]
    return title.replace("``", "`").replace("|", "\\|")


def _section(knob: Knob) -> list[str]:
    """Return the lines of a knob's section, from the empty line before its heading."""
    parts = _parts(knob)
    unit = "" if parts["Unit"] in ("", "none", "on or off") else f" ({parts['Unit']})"
    delivery = [_way(spelling) for spelling in knob.spellings] or [f"through {', '.join(knob.requires)}"]
    lines = [
        "",
        f"## {knob.name}",
        "",
        parts["what"],
        "",
        f"- **Values:** {', '.join(f'`{value}`' for value in values(knob))}{unit}",
        *_effects(parts["Effect"]),
        f"- **Delivery:** {'; '.join(delivery)}",
    ]
    if knob.requires:
        lines.append(f"- **Requires:** {', '.join(f'[`{name}`](#{name})' for name in knob.requires)}")
    lines.append(f"- **Source:** {parts['Source']}")
    refused = refusals(knob)
    if refused:
        lines += ["", "Refused when:", "", *(f"- {text}" for text in refused)]
    return [line.replace("``", "`") for line in lines]


def _parts(knob: Knob) -> dict[str, str]:
    """Split the docstring into the description and its ``Effect:``, ``Unit:`` and ``Source:``."""
    text = " ".join(inspect.cleandoc(type(knob).__doc__ or "").split())
    found = re.fullmatch(r"(.*?) ?Effect: (.*?)\.? Unit: (.*?)\.? Source: (.*?)\.?", text)
    if found is None:
        message = f"the docstring of {knob.name} has no Effect, Unit and Source, in this order"
        raise ValueError(message)
    return dict(zip(("what", "Effect", "Unit", "Source"), found.groups(), strict=True))


def values(knob: Knob) -> list[Value]:
    """Return the values searched under any of the example facts."""
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
            return f"an option of the script, such as `{spelling.names[0]}`"
        case Env():
            return f"the variable `{spelling.name}`"
        case Keyword() if spelling.target == DEEPSPEED:
            return f"`{spelling.name}` in DeepSpeed's configuration"
        case Keyword():
            return f"`{spelling.target}({spelling.name}=...)`"
        case Constant():
            return f"a constant in the source, such as `{spelling.names[0]}`"
        case Patch():
            return "a patch in the training process"
        case Launcher():
            return f"the launcher's {spelling.text}"


def refusals(knob: Knob) -> list[str]:
    """Return every sentence with which the knob is refused, or reported to change nothing."""
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


def _effects(text: str) -> list[str]:
    """Return the effects on the training as a list item; more than one follow below it, one each."""
    head, effects = "- **Effect on the training:**", re.split(r"(?<=[.;]) (?=[A-Z]{4,} )", text)
    if len(effects) == 1:
        return [f"{head} {text}"]
    return [head, *(f"    - {effect.rstrip(';')}" for effect in effects)]


def _shown(node: ast.AST, known: dict[str, Any]) -> str:
    """Return a constant's text; values known only at run time become dots."""
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
