"""Next commands, by purpose."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.report.view import summary
from autotune.report.view.picks import shown_picks
from autotune.report.view.rerun_command import memory_text, search_command
from autotune.report.view.sanitize import shown_command

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.report.view.reselection import Repicked

PICKED: Final = "picked.yaml"
"""Default file for reselected picks; best.yaml has those of the search."""


def commands(study: Study, answer: Answer | None, repicked: Repicked | None, yaml: str) -> dict[str, str]:
    """Return the next commands by purpose.

    Args:
        study: Study to show.
        answer: Answer of the study.
        repicked: Reselection, if the picks differ from those of best.yaml.
        yaml: File with these picks; empty if none was written.
    """
    label = shlex.quote(study.spec.label)
    found: dict[str, str] = {}
    if answer is not None and shown_picks(answer):
        if repicked is not None and not yaml:
            found["write the file"] = write_command(repicked)
        out = shlex.quote(yaml or PICKED)
        for name, pick in shown_picks(answer).items():
            command = summary.apply_command(study, name)
            if repicked is not None:
                chosen = "" if name == "best" else f"--pick {name} "
                command = f"autotune apply {out} {chosen}-- {summary.user_command(study)}"
            key = "apply" if pick is answer.best else f"apply {name}"
            found[key] = command
            if key == "apply":
                found["verify"] = command.replace("autotune apply", "autotune verify", 1)
    if again := search_command(_as_searched(study, repicked)):
        found["search again"] = again
    if answer is not None and answer.resume:
        found["go on"] = answer.resume
    elif study.stopped not in ("", "finished"):
        found["go on"] = f"autotune resume {label}"
    found["look"] = f"autotune show {label} --trials"
    found["open in MLflow"] = f"autotune ui {label}"
    return {name: shown_command(text) for name, text in found.items()}


def _as_searched(study: Study, repicked: Repicked | None) -> Study:
    """Return the study under the bound of the search, if the picks use another."""
    if repicked is None:
        return study
    return replace(study, spec=replace(study.spec, max_memory_bytes=repicked.own_max_bytes))


def write_command(repicked: Repicked) -> str:
    """Return the command that writes these picks into a file."""
    return f"{wishes_command(repicked)} --yaml {PICKED}"


def wishes_command(repicked: Repicked) -> str:
    """Return the `autotune report` command with these selection criteria."""
    words = ["autotune", "report", repicked.study.spec.label]
    if repicked.wishes.objective:
        words += ["--objective", repicked.wishes.objective]
    if repicked.wishes.max_memory_bytes is not None:
        words += ["--max-memory", memory_text(repicked.wishes.max_memory_bytes)]
    return shlex.join(words)
