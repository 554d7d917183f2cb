"""A command whose help lists its options by group."""

from __future__ import annotations

from typing import Any

import typer.core


class Grouped(typer.core.TyperCommand):
    """Lists options below the title of their `rich_help_panel`, in the order of declaration.

    The variable of an option is not repeated for each one: it is always ``AUTOTUNE_`` and the option's name.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            is_option = parameter.param_type_name == "option"
            if is_option:
                parameter.show_envvar = False
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or (
                    "Options" if is_option else "Arguments"
                )
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
