"""Settings of a project: ``[tool.autotune]`` in its pyproject.toml, and ``AUTOTUNE_*`` variables.

Keys are the options of ``autotune search`` without their dashes. The command line has priority over
variables, and these over the file.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from autotune.errors import UsageError, did_you_mean

log = logging.getLogger(__name__)

FILE: Final = "pyproject.toml"
PREFIX: Final = "AUTOTUNE_"
MAX_BYTES: Final = 1024 * 1024

_TEXT, _PATH, _NUMBER, _AMOUNT = "text", "path", "number", "amount"
_YES, _TEXTS, _VALUES = "yes", "texts", "values"
_KINDS: Final[Mapping[str, str]] = {
    "budget": _TEXT,
    "space": _PATH,
    "set": _VALUES,
    "fix": _VALUES,
    "knob": _TEXTS,
    "allow": _TEXTS,
    "max-memory": _TEXT,
    "effective-batch": _TEXT,
    "run-steps": _NUMBER,
    "price-per-hour": _AMOUNT,
    "objective": _TEXT,
    "driver": _TEXT,
    "address": _TEXT,
    "accelerator-type": _TEXT,
    "concurrency": _NUMBER,
    "sampler": _TEXT,
    "transfer": _TEXT,
    "start": _TEXT,
    "wait-for-quiet": _TEXT,
    "wait": _TEXT,
    "share": _YES,
    "trials": _NUMBER,
    "seed": _NUMBER,
    "tracking-uri": _TEXT,
    "experiment": _TEXT,
    "out": _PATH,
    "python": _PATH,
    "output-arg": _TEXTS,
    "keep-loggers": _YES,
    "profile": _YES,
    "tensorboard": _PATH,
    "mlflow-tag": _TEXTS,
    "mlflow-parent-run": _TEXT,
    "wandb": _TEXT,
    "quiet": _YES,
    "exit-zero": _YES,
}
_EXPECTED: Final = {
    _TEXT: 'text in quotes: "10m"',
    _PATH: 'text in quotes: "mine.yaml"',
    _NUMBER: "a whole number: 40",
    _AMOUNT: "a number: 2.5",
    _YES: "true or false",
    _TEXTS: 'a list of texts: ["precision"]',
    _VALUES: 'a list or table: {num_workers = [2, 4]}, ["num_workers=2,4"]',
}
KEYS: Final = tuple(_KINDS)

_warned: set[Path] = set()
"""Files of other accounts that were passed over; each is named once."""

_OTHERS: Final = (
    "HOME", "LOCKS", "DEBUG", "PLAN", "TRIAL", "GUARD", "FORKS", "SERVER", "TOKEN", "SERVICE_REPORT",
    "SERVICE_DATABASE", "PROXY_SECRET", "WEBHOOK_SECRET",
)  # fmt: skip
"""Variables of autotune that are no options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings in a file.

    Args:
        values: Key -> value, of the option's type.
        origins: Key -> ``pyproject.toml:12``.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    origins: Mapping[str, str] = field(default_factory=dict[str, str])


def variable(key: str) -> str:
    """Return the environment variable for the same setting: ``AUTOTUNE_MAX_MEMORY``."""
    return PREFIX + key.upper().replace("-", "_")


def check_variables(environ: Mapping[str, str]) -> None:
    """Refuse a variable that is nearly the name of a setting: it was meant and would be passed over.

    Raises:
        UsageError: With the name that it resembles.
    """
    known = [*map(variable, _KINDS), *(PREFIX + name for name in _OTHERS)]
    for name in environ:
        if name.startswith(PREFIX) and name not in known and (hint := did_you_mean(name, known)):
            raise UsageError(f"the variable {name} is not a setting", hint=hint)


def project_settings(folder: Path) -> Settings:
    """Return the table ``[tool.autotune]`` of the nearest pyproject.toml with one, at or above a folder.

    Relative paths in it (of a space file, an interpreter, the result) are relative to the file. A file of
    another account is ignored: in a shared folder such as ``/tmp`` any account may create one.

    Raises:
        UsageError: The file cannot be read, or a key or value in the table is invalid; with the line.
    """
    for place in (folder, *folder.parents):
        path = place / FILE
        # Most projects say nothing about us; their file is none of our business, even where it is broken.
        if path.is_file() and "autotune" in (text := _text(path)):
            table = _parsed(text, path).get("tool", {}).get("autotune")
            if isinstance(table, dict) and not _is_trusted(path, folder):
                if path not in _warned:
                    _warned.add(path)
                    log.warning("%s belongs to another account; its settings are not used", path)
                continue
            if isinstance(table, dict):
                return _checked(table, text, path, folder)
            if table is not None:
                where = f"{FILE if path.parent == folder else path}:{_line(text, '')}"
                message = f"{where}: [tool.autotune] is not a table but {table!r}"
                raise UsageError(message, hint='it holds settings: budget = "10m"')
    return Settings()


def _is_trusted(path: Path, folder: Path) -> bool:
    """Return whether the file is this account's, root's, or of the current folder's owner (a mount)."""
    return path.stat().st_uid in (os.geteuid(), 0, folder.stat().st_uid)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from error


def _checked(table: Mapping[str, Any], text: str, path: Path, folder: Path) -> Settings:
    shown = FILE if path.parent == folder else str(path)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for written, value in table.items():
        key = written.replace("_", "-")
        where = f"{shown}:{_line(text, written)}"
        kind = _KINDS.get(key)
        if kind is None:
            hint = did_you_mean(key, _KINDS) or f"settings are: {', '.join(_KINDS)}"
            raise UsageError(f'{where}: [tool.autotune] has no setting "{written}"', hint=hint)
        if key in values:
            raise UsageError(f"{where}: {key} is set twice")
        found = _value(value, kind, path.parent)
        if found is None:
            raise UsageError(f"{where}: {key} cannot be {value!r}", hint=f"it is {_EXPECTED[kind]}")
        values[key], origins[key] = found, where
    return Settings(values=values, origins=origins)


def _value(value: Any, kind: str, folder: Path) -> Any:
    """Return the value in the option's type; None if it has another type."""
    if kind == _YES:
        return value if isinstance(value, bool) else None
    if kind == _NUMBER:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if kind == _AMOUNT:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == _VALUES and isinstance(value, dict):
        return [f"{knob}={','.join(_scalars(given))}" for knob, given in value.items()]
    if kind in (_TEXTS, _VALUES):
        is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return value if is_texts else None
    if not isinstance(value, str):
        return None
    return _placed(value, folder) if kind == _PATH else value


def _scalars(given: Any) -> Iterator[str]:
    for value in given if isinstance(given, list) else [given]:
        yield str(value).lower() if isinstance(value, bool) else str(value)


def _placed(text: str, folder: Path) -> str:
    """Return a path made absolute; a bare name (a preset, a program of the `PATH`) is unchanged."""
    is_path = "/" in text or text.endswith((".yaml", ".yml"))
    return str(folder / Path(text).expanduser()) if is_path else text


def _line(text: str, key: str) -> int:
    """Return the line of a key of the table; that of the table if it is written otherwise."""
    at, is_ours = 1, False
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header:
            is_ours = header[1].replace('"', "").startswith("tool.autotune")
            at = number if is_ours and at == 1 else at
            if is_ours and header[1].replace('"', "") == f"tool.autotune.{key}":
                return number
        elif is_ours and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line):
            return number
    return at
