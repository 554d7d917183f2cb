"""Overrides of Hydra and OmegaConf: ``train.batch_size=64``. Parsed, never run."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.model.facts import ScriptFlag
from autotune.source.constants import last_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_OTHER_PHASES: Final = frozenset({"val", "valid", "validation", "dev", "test", "eval", "evaluation", "infer"})
_MOST_BYTES: Final = 128 << 10


def overrides(tree: ast.Module, folder: Path) -> list[ScriptFlag]:
    """Return an option for every number, switch and text of the script's configuration files.

    Args:
        tree: Syntax tree of the script.
        folder: Folder of the script.

    Returns:
        Options without dashes. `ScriptFlag.dest` is the last part of the name if
        one option alone has it, without those for evaluation.
    """
    found: dict[str, ScriptFlag] = {}
    for data in (*_of_hydra(tree, folder), *_of_omegaconf(tree, folder)):
        found |= {
            name: ScriptFlag(names=(name,), dest=name, kind=type(value).__name__, default=value)
            for name, value in _leaves(data, "")
        }
    trained = [name for name in found if not _OTHER_PHASES & set(name.lower().split("."))]
    leaves = Counter(name.rpartition(".")[2] for name in trained)
    alone = {name: name.rpartition(".")[2] for name in trained if leaves[name.rpartition(".")[2]] == 1}
    return [replace(flag, dest=alone.get(name, name)) for name, flag in found.items()]


def _of_hydra(tree: ast.Module, folder: Path) -> Iterator[Mapping[str, Any]]:
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if not ast.unparse(call.func).endswith("hydra.main"):
            continue
        given = {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
        place = given.get("config_path")
        name = given.get("config_name")
        if isinstance(name, str) and (place is None or isinstance(place, str)):
            yield _composed(folder / (place or ""), name)


def _composed(place: Path, name: str) -> Mapping[str, Any]:
    """Return a primary configuration merged with its defaults list, each file under its group's name."""
    primary = _read(place / f"{name.removesuffix('.yaml')}.yaml")
    composed: dict[str, Any] = {}
    entries = primary.get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        pairs = entry.items() if isinstance(entry, dict) else ()
        for group, choice in pairs:
            if isinstance(choice, str) and str(group).isidentifier():
                composed[str(group)] = _read(place / str(group) / f"{choice.removesuffix('.yaml')}.yaml")
        if isinstance(entry, str) and entry != "_self_":
            composed |= _read(place / f"{entry}.yaml")
    return _merged(composed, {key: value for key, value in primary.items() if key != "defaults"})


def _of_omegaconf(tree: ast.Module, folder: Path) -> Iterator[Mapping[str, Any]]:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    if not any(last_name(call.func) == "from_cli" for call in calls):
        return
    for call in calls:
        if ast.unparse(call.func).endswith("OmegaConf.load") and len(call.args) == 1:
            files = [n.value for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant)]
            for file in files:
                if isinstance(file, str) and file.endswith((".yaml", ".yml")):
                    yield _read(folder / file)


def _read(path: Path) -> dict[str, Any]:
    # Imported late: a script without such a file needs the standard library only.
    from autotune.config_files.yaml import load

    try:
        data = load(path.read_text(encoding="utf-8"), source=path.name, max_bytes=_MOST_BYTES)
    except (OSError, UnicodeDecodeError, UsageError):
        return {}
    return dict(data) if isinstance(data, dict) else {}


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(under[key], over[key]) for key in under if _are_mappings(under[key], over.get(key))}
    return {**under, **over, **both}


def _are_mappings(one: object, other: object) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, bool | int | float | str]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, (bool, int, float)) or (isinstance(value, str) and "${" not in value):
            yield name, value
