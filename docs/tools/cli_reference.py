"""The reference of all commands as Markdown: ``python docs/tools/cli_reference.py docs/reference/cli.md``."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.cli.main import _command

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = """\
# Commands

`autotune --help` lists the commands, and `--help` after a command lists its options. Options of autotune come
before `--`, the script's own arguments after it. [Exit codes](../exit_codes.md) have their own page.

This page is generated from the commands by `nox -s reference`.
"""


def reference() -> str:
    """Return the page."""
    group = _command()
    context = group.make_context("autotune", ["list"], resilient_parsing=True)
    lines = [line for section in _commands(group, context, "autotune") for line in section]
    return "\n".join([_HEAD, *lines]) + "\n"


def _commands(group: Any, context: Any, path: str) -> Iterator[list[str]]:
    """Yield the section of every command of a group, and of those of its groups."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        inner = context.__class__(command, info_name=name, parent=context)
        if getattr(command, "commands", None):
            yield from _commands(command, inner, f"{path} {name}")
        else:
            yield _section(command, inner, f"{path} {name}")


def _section(command: Any, context: Any, path: str) -> list[str]:
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [f"## {path}", "", "```text", usage, "```", ""]
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        if paragraph.startswith("\b"):  # click's mark of a paragraph whose lines are kept, such as examples
            lines += ["```text", paragraph.removeprefix("\b").strip("\n"), "```", ""]
        else:
            lines += [_one_line(paragraph), ""]
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        row = _row(parameter, context)
        if row is not None:
            is_option = parameter.param_type_name == "option"
            title = getattr(parameter, "rich_help_panel", None) or ("Options" if is_option else "Arguments")
            groups.setdefault(title, []).append(row)
    for title, rows in groups.items():
        lines += [f"| {title} | |", "|---|---|"]
        lines += [*(f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows), ""]
    return lines


def _row(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Return the name and the description of an argument or option; None if it is hidden."""
    parameter.show_envvar = False
    record = parameter.get_help_record(context)
    if record is None:
        return None
    name, text = re.sub(r" <[^>]*>$", "", record[0]), record[1]  # without the type in Python
    variables = parameter.envvar or ()
    variable = variables if isinstance(variables, str) else " ".join(variables)
    return name, _one_line(f"{text} Variable: `{variable}`." if variable else text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or to stdout."""
    if arguments:
        Path(arguments[0]).write_text(reference(), encoding="utf-8")
    else:
        sys.stdout.write(reference())


if __name__ == "__main__":
    main(sys.argv[1:])
