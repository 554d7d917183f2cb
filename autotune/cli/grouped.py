"""Commands with a help of their own: options by group, and the help where no subcommand is named."""

from __future__ import annotations

from typing import Any

import typer.core


class HelpGroup(typer.core.TyperGroup):
    """Subcommands of a command that prints its help where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


class Grouped(typer.core.TyperCommand):
    """A command whose help shows arguments in their typed form, and lists options by group.

    The group is the option's `rich_help_panel`. The variable of an option is not repeated for each one: it is
    always ``AUTOTUNE_`` and the option's name.
    """

    def __init__(self, *args: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002 (typer's name)
        # A docstring that is raw has click's mark for a paragraph that keeps its lines as two characters.
        super().__init__(*args, help=help.replace("\\b\n", "\b\n") if help else help, **more)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(argument.metavar or argument.name) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        parameters: list[Any] = [*self.get_params(ctx)]
        for parameter in parameters:
            is_option = parameter.param_type_name == "option"
            if is_option:
                parameter.show_envvar = False
            record = parameter.get_help_record(ctx)
            if record is not None and not is_option:
                record = (str(parameter.metavar or parameter.name), record[1])
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or (
                    "Options" if is_option else "Arguments"
                )
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
