"""best.yaml written whole or not at all, and never over an edited one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.export.build import build_best
from autotune.export.dump import dump
from autotune.export.files import write_whole
from autotune.export.parts import BestConfig, PickPart, digest
from autotune.export.read import parse, read_best
from autotune.model.config import config_text
from autotune.model.distributed_launch import launch_words

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.change import Change
    from autotune.model.config import Config
    from autotune.model.study import Study


def write_best(
    path: str | os.PathLike[str],
    study: Study,
    answer: Answer,
    changes_of: Callable[[Config], Sequence[Change]],
    *,
    mlflow_run: str = "",
) -> BestConfig:
    """Write best.yaml completely or not at all.

    An existing file is copied to ``best.1.yaml``, ``best.2.yaml``, ... first, unless it is an unedited one of
    the same study.

    Returns:
        The written content.

    Raises:
        OSError: The folder cannot be written.
        UsageError: The text does not read back as the same content; the old file is unchanged.
    """
    best = build_best(study, answer, changes_of, mlflow_run=mlflow_run)
    save(Path(path), best)
    return best


def save(path: Path, best: BestConfig) -> None:
    """Write this content and retain the old file; see `write_best`."""
    text = render(best, name=path.name)
    if parse(text, source=str(path)) != best:
        raise UsageError(f"{path} does not read back with the same values; nothing was written")
    write_whole(path, text, keep=not _is_same_unedited(path, best))


def render(best: BestConfig, *, name: str = "best.yaml") -> str:
    """Return the file's text: the answer and the next command as comments, then the evidence as YAML."""
    # A line break, or a character that no reader of YAML takes, would end the comment.
    head = [f"# {line}\n" for line in _headlines(best, name) if line.isprintable()]
    return f"{''.join(head)}{dump(best.data())}"


def _headlines(best: BestConfig, name: str) -> list[str]:
    made = f"Made by autotune {best.provenance.autotune}".rstrip()
    evidence = f"{made}; the evidence is below."
    if best.outcome == "inconclusive":
        lines = ["Inconclusive: the pick best is your unchanged script."]
        lines += [f"Continue: {best.resume}"] if best.resume else []
        return [*lines, evidence]
    if not any(pick.changes for pick in best.picks.values()):
        return ["Nothing is faster: the picks are your unchanged script.", evidence]
    pick = best.picks[best.pick]
    started = ["-m", best.study.module] if best.study.module else [best.study.script]
    launched = launch_words(best.study.launcher or "", best.study.python or "")
    command = shlex.join([*launched, *started, *best.study.argv])
    apply = f"Apply: autotune apply {shlex.quote(name)}"
    # An absolute path names folders of this machine, and holds on no other one.
    is_portable = command.isprintable() and not Path(best.study.script).is_absolute()
    return [
        *_claim(best, pick),
        f"{apply} -- {command}" if is_portable else apply,
        evidence,
    ]


def _claim(best: BestConfig, pick: PickPart) -> list[str]:
    """Return what a pick changes, by how much it is faster, and its memory."""
    if not pick.changes:
        return ["Nothing that keeps the training is faster; other picks change it."]
    speedup = pick.speedup
    interval = (
        "" if speedup.low is None or speedup.high is None else f" [{speedup.low:.2f}, {speedup.high:.2f}]"
    )
    changed = config_text({change.knob: change.value for change in pick.changes})
    lines = [f"{speedup.value:.2f}x{interval} in {speedup.n} pairs of fresh runs: {changed}"]
    memory, own = pick.peak_memory, best.baseline.peak_memory
    if memory is not None and own is not None:
        lines.append(f"Peak memory {memory.value:.2f} GiB; your script {own.value:.2f} GiB.")
    return lines


def _is_same_unedited(path: Path, best: BestConfig) -> bool:
    try:
        before = read_best(path)
    except UsageError:
        return False
    return before.study.id == best.study.id and before.provenance.digest == digest(before)
