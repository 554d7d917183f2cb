"""`autotune scale`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.complete import study_labels
from autotune.cli.options import Allow, JsonAtEnd, Pick, Python, Quiet, Share, Wait, WaitForQuiet
from autotune.errors import EXIT_INTERRUPTED, EXIT_STOPPED, AutotuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.driver.scaling import Question, Scaled
    from autotune.inspection.command_line import Command

SCALE_SCHEMA = "autotune.scale/v1"
_STOPPED = {"interrupted": EXIT_INTERRUPTED, "signal": EXIT_STOPPED, "script": UsageError.exit_code}
_ROUNDS = 5


def scale(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- CMD", help="After --: torchrun --nproc-per-node 8 train.py ..."),
    ] = None,
    *,
    config: Annotated[
        str, typer.Option(metavar="best.yaml", help="Measure with a search's result instead of as written.")
    ] = "",
    pick: Pick = "",
    processes: Annotated[
        str,
        typer.Option(
            metavar="1,2,4", help="Numbers of processes. Default: 1, 2, 4, ... up to the command's."
        ),
    ] = "",
    rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fresh runs of each number at most. Default: 5.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="30m", help="Wall time.")] = "",
    price: Annotated[
        float, typer.Option(metavar="2.5", min=0.0, help="Price of one process for an hour, in any currency.")
    ] = 0.0,
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="MLflow store that receives the figures and the report.")
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            metavar="STUDY",
            help="Continue a measurement that was stopped; no finished run is run again.",
            autocompletion=study_labels,
        ),
    ] = "",
    python: Python = "",
    allow: Allow = None,
    wait_for_quiet: WaitForQuiet = "",
    wait: Wait = "",
    share: Share = False,
    json: JsonAtEnd = False,
    quiet: Quiet = False,
) -> int:
    """Measure throughput, efficiency and cost over the number of processes.

    Exit codes: 0 it was measured; 2 usage, or the script was edited meanwhile; 3 the script itself fails;
    5 store; 6 machine; 70 internal error; 75 stopped by a signal; 130 stopped by Ctrl-C.
    """
    import time

    from autotune.cli.outcome import guarded, head_start_s, print_json
    from autotune.driver.spec import budget_s, wait_s
    from autotune.store.paths import new_label
    from autotune.text.redact import redact

    with guarded(as_json=json):
        turn_s, quiet_s = wait_s(wait, "--wait"), wait_s(wait_for_quiet)
        from autotune.driver import scaling
        from autotune.report.terminal.live_view import Progress

        progress = Progress(sys.stderr, quiet=quiet)
        try:
            if resume:
                from autotune.store.paths import find_study

                if command or config or processes or price:
                    raise UsageError(
                        "--resume continues with what the measurement was begun with",
                        hint=f"autotune scale --resume {resume} --budget 30m --rounds 8",
                    )
                found = scaling.resume_scale(
                    find_study(resume),
                    budget_s=budget_s(budget) if budget else None,
                    rounds=rounds,
                    listeners=[progress],
                )
            else:
                run, question = _request(
                    command or [], config, pick, processes, rounds or _ROUNDS, price, python, allow or ()
                )
                for note in run.notes if not quiet else ():
                    print(note, file=sys.stderr)
                stem = f"{run.module.replace('.', '-')}.py" if run.module else run.script
                found = scaling.scale(
                    question,
                    run,
                    label="scale-" + new_label(stem, time.time()),
                    budget_s=budget_s(budget or "30m"),
                    head_start_s=head_start_s(),
                    wait_for_quiet_s=quiet_s or 0.0,
                    wait_s=turn_s,
                    share=share,
                    listeners=[progress],
                )
        finally:
            progress.close()
        sent = _sent(found, tracking_uri) if tracking_uri else ""
        if json:
            print_json({**as_dict(found), **({"mlflow": sent} if sent else {})})
        else:
            sys.stdout.write(redact(screen(found, sent)))
        return exit_code(found)


def _request(
    words: Sequence[str],
    config: str,
    pick: str,
    processes: str,
    rounds: int,
    price: float,
    python: str,
    allow: Sequence[str],
) -> tuple[Command, Question]:
    """Return the command and the question."""
    from autotune.driver.scaling import Question
    from autotune.inspection.command_line import check_one_machine, read_command
    from autotune.inspection.command_line import verify as check
    from autotune.model.distributed_launch import ranks_of

    if not words and not config:
        raise UsageError("no script is given", hint="autotune scale -- torchrun --nproc-per-node 8 train.py")
    if not config:
        run = read_command(words, python=python)
        check_one_machine(run, "scale")
        check(run)
        counts = _counts(processes, ranks_of(run.launcher))
        return run, Question(counts=counts, rounds=rounds, price=price)
    from autotune.cli.best_file import BestFile

    given = BestFile(config)
    name, chosen = given.best.chosen(pick)
    run = given.command(words, python)
    check_one_machine(run, "scale")
    check(run)
    counts = _counts(processes, ranks_of(run.launcher))
    changes = given.changes(chosen, run, allow=allow) if chosen.changes else ()
    return run, Question(counts=counts, rounds=rounds, price=price, changes=changes, pick=name)


def _counts(text: str, most: int) -> tuple[int, ...]:
    """Return the numbers of processes, ascending: as given, else powers of two up to the command's own."""
    from autotune.model.distributed_launch import MOST_RANKS

    if not text:
        if most == 1:
            raise UsageError(
                "the command starts one process, so there is nothing to scale",
                hint="-- torchrun --nproc-per-node 8 train.py, or --processes 1,2,4",
            )
        powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
        return tuple(sorted({*powers, most}))
    parts = [part.strip() for part in text.split(",")]
    counts = sorted({int(part) for part in parts if part.isdecimal() and len(part) < 5})
    if len(counts) < 2 or counts[0] < 1 or counts[-1] > MOST_RANKS or not all(map(str.isdecimal, parts)):
        raise UsageError(
            f"--processes {text!r} is not a list of at least two numbers from 1 to {MOST_RANKS}",
            hint="--processes 1,2,4",
        )
    return tuple(counts)


def exit_code(found: Scaled) -> int:
    """Return the exit code of a stopped run, or 0."""
    return _STOPPED.get(found.study.stopped, 0)


def _sent(found: Scaled, tracking_uri: str) -> str:
    """Send the figures to MLflow and return the run's address; a failure is a warning, for they are kept."""
    from autotune.driver.sinks.scaling_sync import send_scaling

    try:
        return send_scaling(found, tracking_uri)
    except AutotuneError as error:
        again = f"autotune sync {found.study.spec.label} --tracking-uri URI"
        print(f"warning: {error.message}; the figures are kept, send them later: {again}", file=sys.stderr)
        return ""


def as_dict(found: Scaled) -> dict[str, Any]:
    """Return the result as an object, schema ``autotune.scale/v1``."""
    from autotune.report.view.scaling_view import as_object, sentences

    return {
        "schema": SCALE_SCHEMA,
        **as_object(found.scaling),
        "sentences": sentences(found.scaling),
        "knobs": {change.knob: change.value for change in found.question.changes},
        "rounds": max((t.group for t in found.study.finished()), default=0),
        "stopped": found.study.stopped,
        "study": found.study.spec.label,
        "study_dir": str(found.study_dir),
        "exit": exit_code(found),
    }


def screen(found: Scaled, sent: str = "") -> str:
    """Return the result as a screen for users.

    Args:
        found: The measurement.
        sent: Address of the run in MLflow, or "".
    """
    from autotune.model.config import config_text
    from autotune.report.view.scaling_view import COLUMNS, bars, rows, sentences
    from autotune.report.view.summary import user_command

    lines = [f"command  {user_command(found.study)}"]
    if found.question.changes:
        values = {change.knob: change.value for change in found.question.changes}
        lines.append(f"config   {found.question.pick}: {config_text(values)}")
    table = [COLUMNS, *rows(found.scaling)]
    if found.scaling.price <= 0.0:
        table = [(*row[:3], *row[4:]) for row in table]
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    lines.append("")
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", f"processes  throughput in {found.scaling.unit}, ideal at |", *bars(found.scaling), ""]
    lines += [f"note     {text}" for text in sentences(found.scaling)]
    if exit_code(found):
        lines.append(f"resume   autotune scale --resume {found.study.spec.label}")
    if sent:
        lines.append(f"mlflow   {sent}")
    lines.append(f"report   autotune report {found.study.spec.label}")
    return "\n".join(lines) + "\n"
