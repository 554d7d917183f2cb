"""Origins of the values of command-line options: typed, a variable, the project's file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from autotune.config_files.settings import KEYS, check_variables, project_settings, variable

_PARAMETERS = {
    "set": "sets",
    "fix": "fixes",
    "knob": "knobs",
    "output-arg": "output_args",
    "mlflow-tag": "mlflow_tags",
}
"""Settings whose parameter in Python has another name."""

_INTERPRETER, _LOOKS = "python", "inspect"
"""Setting of `search` that `inspect` also takes. Other commands start the script of best.yaml, which may need
another interpreter.
"""

_STARTS = ("search", _LOOKS, "apply", "verify", "export")
"""Commands of autotune that take a command after ``--``."""

_FILE, _VARIABLE, _TYPED = "DEFAULT_MAP", "ENVIRONMENT", "COMMANDLINE"
"""Click's names for the origins of a value."""


def defaults_for(argv: Sequence[str]) -> dict[str, Any]:
    """Return each command's defaults from the project's file, in click's form.

    `search` has settings, of which `inspect` takes the interpreter. A request for help reads no file, so that
    help works with a malformed file.

    Raises:
        UsageError: The file, or a variable, sets something that does not exist.
    """
    typed = list(argv[: argv.index("--")]) if "--" in argv else list(argv)
    verb = typed[0] if typed else ""
    if verb not in ("search", _LOOKS) or {"-h", "--help"} & set(typed):
        return {}
    if verb == "search":
        check_variables(os.environ)
    values = project_settings(Path.cwd()).values
    taken = [key for key in values if verb == "search" or key == _INTERPRETER]
    return {verb: {_parameter(key): values[key] for key in taken}}


def with_typed_interpreter(argv: Sequence[str]) -> list[str]:
    """Return the words of a call, in which an interpreter after ``--`` overrides all but ``--python``.

    Typed words override a variable and the file, wherever they are typed.
    """
    words = list(argv)
    if "--" not in words or words[0] not in _STARTS:
        return words
    at = words.index("--")
    if any(word == "--python" or word.startswith(("--python=", "--script")) for word in words[:at]):
        return words
    from autotune.inspection.command_line import names_interpreter

    return [words[0], "--python", "", *words[1:]] if names_interpreter(words[at + 1 :]) else words


class Sources:
    """Values of a call of `search` that were not typed."""

    def __init__(self, context: typer.Context) -> None:
        self._context = context
        self._origins = project_settings(Path.cwd()).origins

    def narrowed(self, values: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Return ``set``, ``fix``, ... by key, without the file's values for a space that was not chosen.

        A space that was typed, or named by a variable, overrides all values of the file.
        """
        is_chosen = self._source("space") in (_TYPED, _VARIABLE)
        return {
            key: () if is_chosen and self._source(key) == _FILE else tuple(given)
            for key, given in values.items()
        }

    def notes(self, narrowed: Mapping[str, tuple[str, ...]]) -> list[str]:
        """Return a sentence with every value that was not typed and its origin; none if all were typed.

        Args:
            narrowed: Result of `narrowed`.

        Returns:
            The sentences, and one on values of the file that are unused because another space was chosen.
        """
        set_here = [key for key in KEYS if self._source(key) in (_FILE, _VARIABLE)]
        used = [key for key in set_here if narrowed.get(key, True)]
        unused = [key for key in set_here if key not in used and self._value(key)]
        notes = [f"settings: {self._listed(used)}"] if used else []
        if unused:
            notes.append(f"not used, as --space is chosen and these are of another: {self._listed(unused)}")
        return notes

    def is_default(self, key: str) -> bool:
        """Return whether neither the command line nor a variable nor the file sets this."""
        return self._source(key) not in (_TYPED, _VARIABLE, _FILE)

    def _listed(self, keys: Sequence[str]) -> str:
        return ", ".join(f"{key}={self._value(key)} ({self._origin(key)})" for key in keys)

    def _source(self, key: str) -> str:
        source = self._context.get_parameter_source(_parameter(key))
        return "" if source is None else source.name

    def _origin(self, key: str) -> str:
        return variable(key) if self._source(key) == _VARIABLE else self._origins[key]

    def _value(self, key: str) -> str:
        from autotune.text.redact import redact

        value: Any = self._context.params.get(_parameter(key))
        if isinstance(value, (list, tuple)):
            return redact(" ".join(map(str, value)))
        return str(value).lower() if isinstance(value, bool) else redact(str(value))


def _parameter(key: str) -> str:
    return _PARAMETERS.get(key, key.replace("-", "_"))
