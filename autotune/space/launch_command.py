"""The command line and environment that carry a config's flags and variables. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.model.change import Change, Env, Flag, Launcher
from autotune.model.distributed_launch import launch_variables, nodes_of, rank_words, ranks_of, with_ranks
from autotune.model.environment_variables import with_setting
from autotune.model.trial import Launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"-\d+|-\d*\.\d+|-\d+(\.\d*)?[eE][+-]?\d+")


def build_launch(
    *,
    script: str,
    args: Sequence[str],
    python: str,
    cwd: str,
    env: Mapping[str, str],
    changes: Sequence[Change],
    seed: int = 0,
    cache_key: str = "",
    protect: bool = True,
    measure: bool = True,
    module: str = "",
    options: Sequence[str] = (),
    launcher: str = "",
    output_args: Sequence[str] = (),
    batch: int = 0,
    source: str = "",
    stdin: str = "",
) -> Launch:
    """Return how to start one training process, as data.

    An option of the user is replaced in place, in any of its spellings. Others are appended (before a bare
    ``--``) as one word, ``--flag=value``, so that no value can be taken for an option. Single-letter options
    use two words, ``-b 64``. No shell is involved.

    Args:
        script: Path of the script, made absolute against `cwd`.
        args: The user's arguments of the script.
        python: Interpreter.
        cwd: The user's working directory.
        env: Environment that the changes are merged into.
        changes: From `autotune.space.choose_delivery`.
        seed: As in `Launch`, like the following ones.
        cache_key: Name of the compile caches.
        protect: Keep writes off the user's files.
        measure: Record, and stop when measured.
        module: Dotted name if the script runs as a module.
        options: Options of the interpreter.
        launcher: Text of `autotune.model.distributed_launch`; changes have priority over its variables.
        output_args: Options of the script that get a folder of the trial.
        batch: Batch size of the script's own option.
        source: File that constants are relative to, if not the script.
        stdin: As in `Launch`.
    """
    launcher = changed_launcher(launcher, changes)
    argv = (*rank_words(launcher), *with_flags(args, changes))
    env = {**env, **launch_variables(launcher, env)}
    variables: dict[str, str] = {}
    for change in changes:
        if isinstance(change.spelling, Env):
            variables |= with_setting({**env, **variables}, change.spelling.name, change.delivered)
    return Launch(
        command=(python, *options, *(("-m", module) if module else (script,)), *argv),
        script=os.path.normpath(os.path.join(cwd, script)),  # noqa: PTH118 (a pure join, no file is touched)
        argv=argv,
        python=python,
        cwd=cwd,
        env={**env, **variables},
        changes=tuple(changes),
        seed=seed,
        cache_key=cache_key,
        protect=protect,
        measure=measure,
        module=module,
        options=tuple(options),
        output_args=tuple(output_args),
        batch=batch,
        ranks=ranks_of(launcher),
        nodes=nodes_of(launcher),
        source=source,
        stdin=stdin,
    )


def changed_launcher(launcher: str, changes: Sequence[Change]) -> str:
    """Return the launcher with the number of processes of these changes; without a launcher, none."""
    counts = [int(change.value) for change in changes if isinstance(change.spelling, Launcher)]
    return with_ranks(launcher, counts[0]) if launcher and counts else launcher


def with_flags(args: Sequence[str], changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the arguments with every `Flag` change in place, each option once."""
    given = [(c.spelling.names, c.delivered) for c in changes if isinstance(c.spelling, Flag)]
    return _all_placed(args, given)


def with_output(args: Sequence[str], names: Sequence[str], folder: str) -> tuple[str, ...]:
    """Return the arguments with every option of these names set to this folder."""
    return _all_placed(args, [((name,), folder) for name in names])


def _all_placed(args: Sequence[str], given: Sequence[tuple[tuple[str, ...], str]]) -> tuple[str, ...]:
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    options, positional = words[:end], words[end:]
    for names, value in given:
        options = _placed(options, names, value)
    return (*options, *positional)


@dataclass(frozen=True, slots=True)
class _Found:
    """Words ``at`` up to ``at + length`` give the option."""

    at: int
    length: int


def _placed(words: list[str], names: tuple[str, ...], value: str) -> list[str]:
    """Replace the first occurrence, drop further ones; append where there is none."""
    written = _written(names[0], value)
    result: list[str] = []
    placed = False
    at = 0
    while at < len(words):
        found = _occurrence(words, at, names, takes_value=bool(value))
        if found is None:
            result.append(words[at])
            at += 1
            continue
        if not placed:
            result += written
            placed = True
        at += found.length
    return result if placed else [*result, *written]


def _written(name: str, value: str) -> list[str]:
    """Return an option in a form for every parser: click reads ``-b=64`` as the value ``=64``."""
    if not value:
        return [name]
    return [name, value] if _is_short(name) and _is_value(value) else [f"{name}={value}"]


def _occurrence(words: Sequence[str], at: int, names: tuple[str, ...], *, takes_value: bool) -> _Found | None:
    word = words[at]
    if word in names:
        has_value = takes_value and at + 1 < len(words) and _is_value(words[at + 1])
        return _Found(at, 2 if has_value else 1)
    for name in names:
        if word.startswith(f"{name}="):
            return _Found(at, 1)
        if takes_value and _is_short(name) and word.startswith(name) and word[2:].isdecimal():
            return _Found(at, 1)
    return None


def _is_value(word: str) -> bool:
    """Return whether a word can be the value of the option before it, by the rule of argparse."""
    return not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word) is not None


def _is_short(name: str) -> bool:
    return len(name) == 2 and name[0] == "-" and name[1] != "-"
