"""`autotune report`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.complete import study_labels

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cli.open_study import OpenStudy
    from autotune.report.view.reselection import Repicked, SelectionCriteria

_CHOICES = "choose throughput, memory, energy or cost"


def report(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Output file; - for stdout. Default: NAME.html here.")
    ] = "",
    html: Annotated[bool, typer.Option("--html", help="One HTML file; the default.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Markdown, on stdout unless --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, on stdout unless --out.")] = False,
    objective: Annotated[
        str,
        typer.Option(
            metavar="throughput|memory|energy|cost",
            help="Select again: the fastest, or the least memory, energy or cost of faster ones. Default: "
            "as searched.",
        ),
    ] = "",
    max_memory: Annotated[
        str, typer.Option(metavar="6GiB|80%", help="Select again: upper bound on peak memory.")
    ] = "",
    yaml: Annotated[
        str, typer.Option("--yaml", metavar="FILE", help="Write the selected picks, for autotune apply.")
    ] = "",
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> int:
    """Write the report of a study as one file, or select again under other limits.

    STUDY may be a search on the service, or the word fleet: what tuning cost the team and what it saved.

    Reads the journal only: nothing is measured, and results of single runs are marked as estimates. The
    HTML file fetches nothing: send it, print it, read it on a phone.
    """
    from autotune.cli.outcome import guarded
    from autotune.errors import UsageError

    with guarded(as_json=json):
        if html + md + json > 1:
            raise UsageError("one of --html, --md, --json at a time")
        if open_it and (md or json or out == "-"):
            raise UsageError("--open shows an HTML file", hint="leave out --md, --json and --out -")
        from pathlib import Path

        if study == "fleet":
            from autotune.cli.fleet import print_fleet

            return print_fleet(json=json)
        from autotune.cli.open_study import elsewhere, open_search
        from autotune.model.study import SCALE
        from autotune.text.printable import visible

        opened = open_search(study, purposes=(SCALE,))
        if opened.study.spec.purpose:
            if md or objective or max_memory or yaml:
                raise UsageError("a report on scaling has --html, --json, --out and --open only")
            return _scaling(opened.path, "json" if json else "html", out, open_it=open_it)
        wishes = _wishes(opened, objective, max_memory)
        repicked = _repicked(opened, wishes)
        if yaml:
            _write_yaml(opened, repicked, yaml)
            # Commands are typed where the search was; a file named from here is another one there.
            yaml = str(Path(yaml).absolute()) if elsewhere(opened.study) else yaml
        kind = "json" if json else "md" if md else "html"
        text = visible(_text(kind, opened, repicked, yaml))
        if out == "-" or (not out and kind != "html"):
            sys.stdout.write(text)
            return 0
        _written(text, out or f"{opened.study.spec.label}.html", open_it=open_it)
        if repicked is not None:
            sys.stderr.write(_picked_text(repicked, yaml))
    return 0


def _scaling(directory: Path, kind: str, out: str, *, open_it: bool) -> int:
    """Write the report of `autotune scale`."""
    import json

    from autotune.cli.commands.scale import as_dict
    from autotune.driver.scaling import read_scaled
    from autotune.report.html.scaling_page import scaling_html
    from autotune.report.view.summary import user_command
    from autotune.text.printable import visible
    from autotune.text.redact import redact_data

    found = read_scaled(directory)
    if kind == "json":
        data = redact_data({**as_dict(found), "exit": 0})
        text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    else:
        text = scaling_html(found.study, found.scaling, user_command(found.study))
    if out == "-" or (not out and kind == "json"):
        sys.stdout.write(visible(text))
    else:
        _written(visible(text), out or f"{found.study.spec.label}.html", open_it=open_it)
    return 0


def _wishes(opened: OpenStudy, objective: str, max_memory: str) -> SelectionCriteria:
    from autotune.config_files.memory import memory_bytes
    from autotune.errors import UsageError, did_you_mean
    from autotune.model.objective import OBJECTIVES
    from autotune.report.view.reselection import SelectionCriteria

    quantity = {"peak_memory": "memory", "speed": "throughput", "joules": "energy", "price": "cost"}.get(
        objective, objective
    )
    if quantity == "loss":
        message = "loss is not an objective: every recommendation has to keep it"
        raise UsageError(message, hint=_CHOICES)
    if quantity and quantity not in OBJECTIVES:
        hint = did_you_mean(objective, list(OBJECTIVES)) or _CHOICES
        raise UsageError(f'"{objective}" is no objective', hint=hint)
    # Of the machine that was searched on, which need not be this one.
    total = opened.study.memory_bytes
    bound = memory_bytes(max_memory, total_bytes=total) if max_memory else None
    return SelectionCriteria(objective=quantity, max_memory_bytes=bound)


def _repicked(opened: OpenStudy, wishes: SelectionCriteria) -> Repicked | None:
    from autotune.errors import UsageError
    from autotune.report.view.reselection import repick

    if not wishes:
        return None
    if opened.answer is None:
        message = f"study {opened.study.spec.label} has no measured baseline to compare with"
        raise UsageError(message, hint=f"go on: autotune resume {opened.study.spec.label}")
    return repick(opened.study, wishes)


def _write_yaml(opened: OpenStudy, repicked: Repicked | None, path: str) -> None:
    from pathlib import Path

    from autotune.driver.result import changes_of
    from autotune.errors import UsageError
    from autotune.export.best_config import write_best

    study = repicked.study if repicked is not None else opened.study
    answer = repicked.answer if repicked is not None else opened.answer
    if answer is None:
        raise UsageError(f"study {study.spec.label} has no picks to write")
    target = Path(path).absolute()
    write_best(target, study, answer, changes_of(study))


def _text(kind: str, opened: OpenStudy, repicked: Repicked | None, yaml: str) -> str:
    from pathlib import Path

    from autotune.cli.open_study import filed, named_file
    from autotune.report.html.page import report_html
    from autotune.report.text.study_notes import note
    from autotune.report.view.bottleneck_text import why_lines
    from autotune.report.view.next_commands import PICKED, write_command

    file = str(Path(yaml).absolute()) if yaml else named_file(opened)
    opened = replace(opened, study=filed(opened.study, file))
    if kind == "html":
        return report_html(opened.study, opened.answer, repicked=repicked, yaml=yaml)
    if kind == "json":
        return _json(opened, repicked, yaml)
    if repicked is None:
        held_back = why_lines(opened.study, opened.answer) if opened.answer is not None else ()
        return note(opened.study, opened.answer, held_back=held_back)
    # The file of the reselected picks, in the script's folder if not written yet; best.yaml has other picks.
    file = file if yaml else str(Path(opened.study.spec.cwd, PICKED))
    held_back = why_lines(repicked.study, repicked.answer)
    text = note(filed(repicked.study, file), repicked.answer, held_back=held_back)
    if not yaml and "autotune apply" in text:
        first, _, rest = text.partition("\n")
        text = f"{first}\n**Write these picks to a file:** `{write_command(repicked)}`\n\n{rest}"
    return text + _wishes_markdown(repicked)


def _json(opened: OpenStudy, repicked: Repicked | None, yaml: str) -> str:
    import json

    from autotune.report.view.report_data import report_data
    from autotune.report.view.study_view import View

    data: dict[str, Any] = report_data(View.of(opened.study, opened.answer, repicked=repicked, yaml=yaml))
    return json.dumps({**data, "exit": 0}, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _wishes_markdown(repicked: Repicked | None) -> str:
    from autotune.model.config import config_text
    from autotune.report.view.summary import bytes_text

    if repicked is None:
        return ""
    lines = ["", "### Other criteria", "", *(f"- {n}" for n in repicked.notes)]
    lines += [
        f"- estimated, not confirmed: {e.ratio:.2f}x in {e.runs} single run{'s' * (e.runs > 1)}, "
        f"{bytes_text(e.peak_bytes)}: {config_text(e.config)}"
        for e in repicked.estimates
    ]
    return "\n".join(lines) + "\n"


def _picked_text(repicked: Repicked, yaml: str) -> str:
    """Return the text of a reselected pick, which also names what the file does not contain."""
    from autotune.cli.open_study import elsewhere
    from autotune.report.view.answer_view import PickView
    from autotune.report.view.next_commands import commands
    from autotune.report.view.study_view import View, headline
    from autotune.report.view.summary import bytes_text, changes_text, plural
    from autotune.text.redact import redact

    study, answer = repicked.study, repicked.answer
    rows = [("best" if answer.is_better else "none", headline(View.of(study, answer, repicked=repicked)))]
    if answer.is_better:
        rows += [("", PickView.of(answer.best).costs), ("", changes_text(study, answer.best.config))]
    rows += [("note", text) for text in repicked.notes]
    for e in repicked.estimates:
        seen = f"{e.ratio:.2f}x, {bytes_text(e.peak_bytes)} in {plural(e.runs, 'single run')}, not confirmed"
        rows.append(("maybe", f"{seen}: {changes_text(study, e.config)}"))
    given = commands(study, answer, repicked, yaml)
    typed = [(name.split()[0], given[name]) for name in ("write the file", "apply") if name in given]
    if typed and (folder := elsewhere(study)):
        rows.append(("in", folder))
    rows += typed
    return redact("".join(f"{name:<8}{text}\n" for name, text in rows), free=True)


def _written(text: str, name: str, *, open_it: bool) -> None:
    from pathlib import Path

    from autotune.cli.outcome import shown_path
    from autotune.driver.sinks.report_writer import write_page
    from autotune.store.paths import unwritable

    path = Path(name).absolute()
    try:
        write_page(path, text)
    except OSError as error:
        what = f"{path} could not be written"
        raise unwritable(what, path, error, hint="choose another place: --out FILE") from error
    print(shown_path(str(path)))
    if open_it:
        import webbrowser

        webbrowser.open(path.as_uri())
