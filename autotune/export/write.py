"""best.yaml written whole or not at all, and never over an edited one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.launched import launch_words
from autotune.errors import UsageError
from autotune.export.build import build_best
from autotune.export.dump import dump
from autotune.export.files import write_whole
from autotune.export.parts import BestConfig, digest
from autotune.export.read import parse, read_best

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from autotune.core.answer import Answer
    from autotune.core.change import Change
    from autotune.core.config import Config
    from autotune.core.study import Study


def write_best(
    path: str | os.PathLike[str],
    study: Study,
    answer: Answer,
    changes_of: Callable[[Config], Sequence[Change]],
    *,
    mlflow_run: str = "",
) -> BestConfig:
    """Write best.yaml whole or not at all.

    A file that is there already is kept beside it (``best.1.yaml``, ``best.2.yaml``, ...), unless
    it is an unedited one of the same study, which this one continues.

    Returns:
        What was written.

    Raises:
        OSError: The folder cannot be written.
        UsageError: What was written does not read back as meant; the old file stays in place.
    """
    best = build_best(study, answer, changes_of, mlflow_run=mlflow_run)
    save(Path(path), best)
    return best


def save(path: Path, best: BestConfig) -> None:
    """Write this content, keeping what is there; see `write_best`."""
    text = render(best, name=path.name)
    if parse(text, source=str(path)) != best:
        raise UsageError(f"{path} would not read back as it was meant; nothing was written")
    write_whole(path, text, keep=not _is_same_unedited(path, best))


def render(best: BestConfig, *, name: str = "best.yaml") -> str:
    """The file's text: a comment that says what to do with it, then YAML."""
    return f"# {_headline(best, name)}\n{dump(best.data())}"


def _headline(best: BestConfig, name: str) -> str:
    made = (
        f"Made by autotune {best.provenance.autotune}." if best.provenance.autotune else "Made by autotune."
    )
    if best.outcome == "inconclusive":
        go_on = f" Continue: {best.resume}" if best.resume and best.resume.isprintable() else ""
        return f"{made} Inconclusive: best is your unchanged script.{go_on}"
    if not any(pick.changes for pick in best.picks.values()):
        return f"{made} Nothing beats your script: these picks are your unchanged script."
    started = ["-m", best.study.module] if best.study.module else [Path(best.study.script).name]
    command = (
        f" -- {shlex.join([*launch_words(best.study.launcher or '', best.study.python or ''), *started])}"
    )
    # A line break, or what no reader of YAML takes, would end the comment; the file knows the command.
    return f"{made} Apply: autotune apply {shlex.quote(name)}{command if command.isprintable() else ''}"


def _is_same_unedited(path: Path, best: BestConfig) -> bool:
    try:
        before = read_best(path)
    except UsageError:
        return False
    return before.study.id == best.study.id and before.provenance.digest == digest(before)
