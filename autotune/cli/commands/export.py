"""`autotune export`."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Allow, Json, Python
from autotune.errors import EXIT_NO, EXIT_YES, NotApplied, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.cli.best_file import BestFile
    from autotune.export.best_config import PickPart
    from autotune.export.formats.content import Exported, TunedValues
    from autotune.export.formats.source import ScriptSource
    from autotune.inspection.command_line import Command

EXPORT_SCHEMA = "autotune.export/v1"


class Format(str, Enum):
    """Target format of an exported configuration."""

    argv = "argv"
    env = "env"
    hf = "hf"
    lightning = "lightning"
    accelerate = "accelerate"
    deepspeed = "deepspeed"
    diff = "diff"
    optuna = "optuna"


_FORMS = {
    Format.env: ("dotenv", "export"),
    Format.hf: ("json", "keywords"),
    Format.lightning: ("keywords", "json"),
}
"""Formats that can be written in several ways, the usual one first."""


def export(
    file: Annotated[
        str, typer.Argument(metavar="best.yaml", help="The file that a search wrote; optuna: or a study.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- CMD", help="argv, diff: python train.py ... Default: the command that was searched."
        ),
    ] = None,
    *,
    to: Annotated[
        Format,
        typer.Option(
            "--as",
            help="argv (the default): the command line. env: variables. hf: TrainingArguments. "
            "lightning: keywords of Trainer and DataLoader. accelerate, deepspeed: their files. "
            "diff: of the script. optuna: every "
            "trial of the study, as a SQLite file for optuna-dashboard.",
        ),
    ] = Format.argv,
    form: Annotated[
        str,
        typer.Option(
            metavar="FORM", help="env: dotenv or export; hf: json or keywords; lightning: keywords or json."
        ),
    ] = "",
    pick: Annotated[
        str, typer.Option(metavar="PICK", help="safe, best, fastest or likely. Default: the file's own.")
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="optuna: the file. Default: NAME.optuna.db here.")
    ] = "",
    python: Python = "",
    allow: Allow = None,
    force: Annotated[
        bool, typer.Option("--force", help="diff: even if the script has changed since the search.")
    ] = False,
    json: Json = False,
) -> int:
    """Write a configuration as the options or files of another program.

    Exit codes: 0 at least one change is written, or there is none; 1 the format can express none of them;
    2 usage; 6 a diff of a script that has changed since the search.
    """
    from autotune.cli.outcome import guarded, print_json

    with guarded(as_json=json):
        from autotune.cli.best_file import BestFile

        if to is Format.optuna:
            return _optuna(file, out, as_json=json)
        if out:
            raise UsageError("--out is of --as optuna alone", hint="send the output into a file: > FILE")
        shape, given = _form(to, form), BestFile(file)
        name, chosen = given.best.chosen(pick)
        request = _Request(
            file=given, words=command or [], python=python, allow=tuple(allow or ()), force=force
        )
        exported = _exported(to, shape, chosen, request)
        apply = _apply_command(file, command or [], pick)
        code = EXIT_NO if chosen.changes and not exported.included else EXIT_YES
        notes = [*exported.notes, *_notes(chosen)]
        if json:
            print_json(
                {
                    "schema": EXPORT_SCHEMA,
                    "format": to.value,
                    "form": shape,
                    "pick": name,
                    "included": list(exported.included),
                    "left": [{"knob": x.knob, "value": x.value, "reason": x.reason} for x in exported.left],
                    "notes": notes,
                    "apply": apply,
                    "content": exported.data,
                    "text": exported.text,
                    "exit": code,
                }
            )
        else:
            _show(exported, notes, _head(file, name, chosen), apply)
    return code


def _optuna(name: str, out: str, *, as_json: bool) -> int:
    """Write every trial of a study for Optuna.

    Args:
        name: A best.yaml, or a study.
        out: File to create; empty for one named after the study.
        as_json: Print an object.

    Raises:
        UsageError: The file exists.
        StudyNotFound: The study is not on this machine.
    """
    from autotune.cli.open_study import open_study
    from autotune.cli.outcome import print_json, shown_path
    from autotune.export.best_config import read_best
    from autotune.search.samplers.optuna_export import write_optuna
    from autotune.store.paths import find_study

    study = open_study(find_study(read_best(name).study.id if Path(name).is_file() else name)).study
    path = Path(out or f"{study.spec.label}.optuna.db").absolute()
    try:
        count = write_optuna(study, path)
    except FileExistsError:
        raise UsageError(f"{path} exists", hint="name another file: --out FILE") from None
    url = f"sqlite:///{path}"
    if as_json:
        print_json(
            {"schema": EXPORT_SCHEMA, "format": "optuna", "trials": count, "storage": url, "exit": EXIT_YES}
        )
    else:
        print(f"{shown_path(str(path))}: {count} trials; open it: optuna-dashboard {shlex.quote(url)}")
    return EXIT_YES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Inputs of the formats that contain a command or a script."""

    file: BestFile
    words: list[str]
    python: str
    allow: tuple[str, ...]
    force: bool


def _form(to: Format, form: str) -> str:
    known = _FORMS.get(to, ())
    if not form:
        return known[0] if known else ""
    if form in known:
        return form
    if not known:
        raise UsageError(f"--as {to.value} has one form alone", hint="leave out --form")
    raise UsageError(
        f'--as {to.value} has no form "{form}"',
        hint=did_you_mean(form, known) or f"it has: {', '.join(known)}",
    )


def _exported(to: Format, form: str, chosen: PickPart, request: _Request) -> Exported:
    from autotune.export.formats.content import TunedValues, whole

    run = request.file.command(request.words, request.python) if to is Format.diff else None
    if run is not None and chosen.changes and not request.force and not _is_same(run, request):
        raise NotApplied(
            f"{run.title} is not the script that was searched, so recorded lines may have moved",
            hint="search again, or use its current code: --force",
        )
    changes = request.file.changes(chosen, run, allow=request.allow)
    best = request.file.best
    tuned = TunedValues(
        changes=changes,
        knobs=chosen.knobs,
        on_device=bool(best.environment.gpu),
        launcher=best.study.launcher or "",
    )
    return whole(_format(to, form, request, run), tuned)


def _format(
    to: Format, form: str, request: _Request, run: Command | None
) -> Callable[[TunedValues], Exported]:
    match to:
        case Format.argv:
            from autotune.export.formats.command import command_line

            start, args = _started(request)
            return lambda tuned: command_line(tuned, start, args, os.environ)
        case Format.env:
            from autotune.export.formats.command import environment_file

            return lambda tuned: environment_file(tuned, os.environ, export=form == "export")
        case Format.hf:
            from autotune.export.formats.huggingface import training_arguments

            return lambda tuned: training_arguments(tuned, keywords=form == "keywords")
        case Format.lightning:
            from autotune.export.formats.lightning import lightning_keywords

            return lambda tuned: lightning_keywords(tuned, keywords=form == "keywords")
        case Format.accelerate:
            from autotune.export.formats.accelerate import accelerate_config

            return accelerate_config
        case Format.deepspeed:
            from autotune.export.formats.deepspeed import deepspeed_config

            return deepspeed_config
        case _:
            assert run is not None, "the script that lines are changed in"
            return lambda tuned: _diff(tuned, run, request)


def _started(request: _Request) -> tuple[list[str], list[str]]:
    """Return the words that start the script, as typed, and the script's own arguments."""
    from autotune.inspection.command_line import read_command

    if not request.words:
        return _searched(request)
    run = read_command(request.words, python=request.python)
    count = len(request.words) - len(run.args)
    if tuple(request.words[count:]) != run.args:
        started = ["-m", run.module] if run.module else [run.script]
        return [run.python, *run.options, *started], [*run.args]
    start = request.words[:count]
    is_bare = len(start) == 1 and Path(start[0]).is_file() and not os.access(start[0], os.X_OK)
    return ["python", *start] if is_bare else start, [*run.args]


def _searched(request: _Request) -> tuple[list[str], list[str]]:
    """Return the words and arguments of the searched command, which may not be runnable here."""
    from autotune.model.distributed_launch import launch_words
    from autotune.text.redact import restore

    args, part = request.file.arguments(request.python), request.file.best.study
    started = ["-m", part.module] if part.module else [restore(part.script)]
    start = launch_words(part.launcher or "", restore(part.python or ""))
    return [*start, *(part.options or []), *started], args


def _is_same(run: Command, request: _Request) -> bool:
    """Return whether the script is the searched one, or the file does not record which one that was."""
    import hashlib

    searched = request.file.best.environment.script_sha256
    try:
        return not searched or hashlib.sha256(Path(run.inspected).read_bytes()).hexdigest() == searched
    except OSError as error:
        raise UsageError(f"cannot read the script {run.inspected}: {error.strerror}") from error


def _diff(tuned: TunedValues, run: Command, request: _Request) -> Exported:
    from autotune.export.formats.diff import script_diff
    from autotune.export.formats.source import ScriptSource

    path = Path(run.inspected)
    try:
        data = path.read_bytes()
        script = ScriptSource(_name_in_diff(path, path.parent), data)
    except OSError as error:
        raise UsageError(f"cannot read the script {path}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path.name} is not Python in UTF-8: {error}") from error
    is_same = _is_same(run, request)
    return script_diff(tuned, script, _reader(path, script), run.args, trust_lines=is_same)


def _reader(script_path: Path, script: ScriptSource) -> Callable[[str], ScriptSource | str]:
    """Return a reader of files near the script, by the names that trials record."""
    from autotune.export.formats.source import ScriptSource

    def read(name: str) -> ScriptSource | str:
        path = script_path.parent / name
        if path == script_path:
            return script
        try:
            return ScriptSource(_name_in_diff(path, script_path.parent), path.read_bytes())
        except OSError:
            return f"{name} holds the value and cannot be read"
        except (SyntaxError, ValueError):
            return f"{name} holds the value and is not Python in UTF-8"

    return read


def _name_in_diff(path: Path, folder: Path) -> str:
    """Return a name for `patch`, relative to the current folder, or to the script's folder if not below."""
    name = os.path.relpath(path)
    if name.startswith(".."):
        name = os.path.relpath(path, folder)
    if not name.isprintable():
        raise UsageError(f"a diff cannot name {name!a}", hint="rename the file")
    return name


def _apply_command(file: str, words: Sequence[str], pick: str) -> str:
    """Return the command that applies all of a pick."""
    chosen = ["--pick", pick] if pick else []
    return shlex.join(["autotune", "apply", *chosen, file, *(["--", *words] if words else [])])


def _head(file: str, name: str, chosen: PickPart) -> str:
    gain = f"{chosen.speedup.value:.2f}x" if chosen.changes else "your unchanged script"
    return f"{file}, pick {name}: {gain}"


def _notes(chosen: PickPart) -> list[str]:
    """Return the notes on a pick that apply to every format."""
    notes = ["this pick changes the training"] if chosen.effect == "TRAINING" else []
    return [*notes, chosen.advice] if chosen.advice else notes


def _show(exported: Exported, notes: Sequence[str], head: str, apply: str) -> None:
    remedy = [f"all of it: {apply}"] if exported.left else []
    _write(replace(exported, notes=tuple(notes)).commented([head], remedy))
    if exported.comment and exported.left:
        # Comments are not visible when the text goes to a file or a program.
        names = ", ".join(left.knob for left in exported.left)
        print(f"autotune: left out, for reasons in the comments: {names}; {remedy[0]}", file=sys.stderr)
    elif not exported.comment:
        lines = [
            *(f"left out: {left.text}" for left in exported.left),
            *remedy,
            *(f"note: {n}" for n in notes),
        ]
        for line in [head, *lines]:
            print(f"autotune: {line}", file=sys.stderr)


def _write(text: str) -> None:
    """Write a text, without replaced characters to a file or a program: a changed diff would fit no file."""
    from autotune.report.terminal.async_writer import raw

    stream = sys.stdout if sys.stdout.isatty() else raw(sys.stdout)
    try:
        text.encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "surrogateescape"))
    else:
        stream.write(text)
