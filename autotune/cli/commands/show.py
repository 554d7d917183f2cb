"""`autotune show`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.complete import study_labels
from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.cli.open_study import OpenStudy


def show(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    trials: Annotated[bool, typer.Option("--trials", help="List every trial, not only the front.")] = False,
    trial: Annotated[
        int | None, typer.Option("--trial", metavar="N", help="One trial: what it ran, measured and wrote.")
    ] = None,
    md: Annotated[bool, typer.Option("--md", help="Markdown, for a report or a pull request.")] = False,
    json: Json = False,
) -> int:
    """Show a study: its answer with every detail, the front, and what failed."""
    from autotune.cli.open_study import filed, named_file, open_study
    from autotune.cli.outcome import guarded, print_json
    from autotune.cli.remote import find_study
    from autotune.model.study import SCALE, VERIFY
    from autotune.report.text.study_notes import note
    from autotune.report.view.bottleneck_text import why_lines

    with guarded(as_json=json):
        opened = open_study(find_study(study))
        if trial is not None:
            _show_trial(opened, trial, json=json)
        elif opened.study.spec.purpose == VERIFY:
            _show_verified(opened, json=json)
        elif opened.study.spec.purpose == SCALE:
            _show_scaling(opened, json=json)
        elif json:
            print_json(show_json(opened))
        elif md:
            held = why_lines(opened.study, opened.answer) if opened.answer is not None else ()
            study_here = filed(opened.study, named_file(opened))
            sys.stdout.write(note(study_here, opened.answer, held_back=held))
        else:
            sys.stdout.write(show_text(opened, all_trials=trials))
    return 0


def show_text(opened: OpenStudy, *, all_trials: bool) -> str:
    """Return the study as a screen for users."""
    from autotune.cli.open_study import elsewhere, own_file
    from autotune.cli.outcome import shown_path, terminal_columns
    from autotune.driver.result import advice_lines
    from autotune.report.text.answer_screen import answer_screen
    from autotune.report.text.terminal_text import stopped_screen, trials_table, wrapped
    from autotune.text.redact import redact_args

    study, answer = opened.study, opened.answer
    spec = study.spec
    command = shlex.join(redact_args([spec.script, *spec.args]))
    head = f"study {spec.label} ({spec.study_id})   {command}"
    parts = [f"{head}   {study.stopped or 'open'}\n"]
    file = own_file(opened)
    if answer is None:
        parts.append(stopped_screen(study, reason="the unchanged script was not measured"))
    else:
        screen = answer_screen(
            study,
            answer,
            out=shown_path(file) if file else "",
            folder=elsewhere(study),
            advice=advice_lines(study),
            details=True,
        )
        parts.append(wrapped(screen, terminal_columns()))
        front = {member.trial for member in answer.front}
        chosen = [t for t in study.trials if t.number in front]
        if not all_trials:
            parts.append(
                "front: nothing beats these on speed, memory and loss together\n"
                + wrapped(trials_table(study, chosen), terminal_columns())
            )
    if all_trials or answer is None:
        parts.append("trials\n" + wrapped(trials_table(study), terminal_columns()))
    failed = [t for t in study.finished() if t.failure is not None]
    if failed and not all_trials and answer is not None:
        parts.append("failed\n" + wrapped(trials_table(study, failed), terminal_columns()))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _show_trial(opened: OpenStudy, number: int, *, json: bool) -> None:
    """Print one trial.

    Raises:
        StudyNotFound: The study has no trial of that number.
    """
    from autotune.cli.commands.logs import trial_folders
    from autotune.cli.outcome import print_json
    from autotune.errors import StudyNotFound
    from autotune.model.wire import to_wire
    from autotune.report.text.trial_text import trial_text
    from autotune.text.redact import redact

    study = opened.study
    found = next((t for t in study.trials if t.number == number), None)
    if found is None:
        last = study.trials[-1].number if study.trials else -1
        have = f"its trials are 0 to {last}" if study.trials else "it has no trials"
        raise StudyNotFound(f"study {study.spec.label} has no trial {number}: {have}")
    if json:
        print_json({"schema": "autotune.show/v1", "trials": [to_wire(found)], "exit": 0})
        return
    logs = f"autotune logs {study.spec.label} {number}" if trial_folders(opened.path, number) else ""
    sys.stdout.write(redact(trial_text(study, found, logs=logs), free=True))


def _show_scaling(opened: OpenStudy, *, json: bool) -> None:
    """Print the result of `autotune scale`."""
    from autotune.cli.commands.scale import as_dict, screen
    from autotune.cli.outcome import print_json
    from autotune.driver.scaling import read_scaled
    from autotune.report.text.terminal_text import trials_table
    from autotune.text.redact import redact

    found = read_scaled(opened.path)
    if json:
        print_json({**as_dict(found), "exit": 0})
    else:
        sys.stdout.write(redact(screen(found)) + "trials\n" + redact(trials_table(found.study)) + "\n")


def _show_verified(opened: OpenStudy, *, json: bool) -> None:
    """Print the result of `autotune verify`."""
    from autotune.cli.commands.verify import as_dict, screen
    from autotune.cli.outcome import print_json, terminal_columns
    from autotune.driver.verification import read_verified
    from autotune.model.wire import to_wire
    from autotune.report.text.terminal_text import trials_table, wrapped
    from autotune.report.view.summary import user_command

    found, study = read_verified(opened.path), opened.study
    if json:
        data = {"schema": "autotune.show/v1", "study": {"id": study.spec.study_id, "label": study.spec.label}}
        data |= {"verify": as_dict(found), "stopped": study.stopped, "elapsed_s": study.elapsed_s}
        print_json({**data, "trials": [to_wire(trial) for trial in study.trials], "exit": 0})
        return
    spec = study.spec
    head = f"study {spec.label} ({spec.study_id})   {user_command(study)}   {study.stopped or 'open'}\n"
    answer = (
        screen(found) if opened.answer is not None else "No answer: the unchanged script was not measured.\n"
    )
    table = wrapped(trials_table(study), terminal_columns()).rstrip()
    sys.stdout.write("\n".join([head, answer, f"trials\n{table}\n"]))


def show_json(opened: OpenStudy) -> dict[str, Any]:
    """Return the study as an object, schema ``autotune.show/v1``."""
    from autotune.driver.result import changes_of, explained
    from autotune.export.best_config import build_best
    from autotune.model.wire import to_wire

    study, answer = opened.study, opened.answer
    data: dict[str, Any] = {"study": {"id": study.spec.study_id, "label": study.spec.label}}
    if answer is not None:
        data = build_best(study, answer, changes_of(study)).data()
        data.pop("schema", None)
    return {
        "schema": "autotune.show/v1",
        **data,
        "sentence": answer.sentence if answer else "",
        "caveats": list(answer.caveats) if answer else [],
        "unsettled": list(answer.unsettled) if answer else [],
        **explained(study, answer),
        "failures": dict(answer.failures) if answer else {},
        "refusals": dict(study.refusals),
        "stopped": study.stopped,
        "elapsed_s": study.elapsed_s,
        "trials": [to_wire(trial) for trial in study.trials],
        "exit": 0,
    }
