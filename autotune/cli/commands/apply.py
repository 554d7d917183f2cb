"""`autotune apply`."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Allow, Pick, Python
from autotune.errors import NotApplied, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cli.best_file import BestFile
    from autotune.export.best_config import BestConfig, PickPart
    from autotune.inspection.command_line import Command
    from autotune.model.change import Change
    from autotune.model.config import Value
    from autotune.model.facts import HostFacts
    from autotune.model.trial import Launch

IN_PROCESS = ("keyword", "patch", "constant")
_DELIVERY = {"flag": "option", "env": "variable", "patch": "a patch in the process"}
"""Deliveries in the file -> texts for users, where they differ."""


def apply(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="best.yaml", help="The file that a search wrote, or the id of a search on the service."
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- CMD", help="After --: python train.py ... Default: the command that was searched."
        ),
    ] = None,
    *,
    pick: Pick = "",
    python: Python = "",
    allow: Allow = None,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print the plain command and run nothing.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes and run nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run even if the script has changed.")] = False,
    from_server: Annotated[
        bool,
        typer.Option(
            "--from-server", help="Take the newest configuration of the service for this script and machine."
        ),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Report to the service how long the training runs, and no more.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="End with 6, in place of a warning, if the run contradicts the search."
        ),
    ] = False,
) -> int:
    """Train with a configuration that a search found.

    Ends with the script's own exit code, or with 6 if the configuration does not take effect at once.
    A change that later contradicts the search is undone, with a warning, and the training continues.
    """
    from contextlib import nullcontext

    from autotune.cli.best_file import BestFile
    from autotune.cli.heartbeat import Heartbeat
    from autotune.cli.remote import best_file, client

    if from_server:
        # No file is given: the first word that was parsed belongs to the command.
        command = [word for word in (file, *(command or ())) if word]
        file = _registered(command, python)
    if not file:
        raise UsageError("no file is given", hint="autotune apply best.yaml; or: --from-server -- python ...")
    _check_is_result(file)
    given = BestFile(best_file(file))
    best = given.best
    name, chosen = best.chosen(pick)
    if diff:
        sys.stdout.write(diff_text(best, name, chosen))
        return 0
    from autotune.inspection.command_line import check_one_machine, verify

    run = _under_torchrun(given.command(command or [], python), typed=bool(command))
    for note in run.notes:
        print(f"autotune: {note}", file=sys.stderr)
    check_one_machine(run)
    verify(run)
    is_other = _check(best, chosen, run, force=force or print_env)
    changes = given.changes(chosen, run, allow=allow or ())
    if print_env:
        sys.stdout.write(plain_command(changes, run))
        return 0
    own = best.baseline.knobs
    if changes and (given.is_edited or is_other):
        changes, own = _fitting(given, chosen, changes, run, strict=strict)
    with Heartbeat(client(), best.study.label) if report else nullcontext():
        return _run(given, name, chosen, _launch(changes, run), run, own=own, strict=strict)


def _registered(command: Sequence[str], python: str) -> str:
    """Return the file of the service's configuration for the script of a command on this machine."""
    import hashlib

    from autotune.cli.remote import registered_file
    from autotune.inspection.command_line import read_command, verify
    from autotune.service.progress import hardware_key

    if not command:
        raise UsageError(
            "--from-server needs the command", hint="autotune apply --from-server -- python train.py"
        )
    run = read_command(command, python=python)
    verify(run)
    sha256 = hashlib.sha256(Path(run.inspected).read_bytes()).hexdigest()
    return registered_file(sha256, hardware_key(_host(run)))


def _check_is_result(file: str) -> None:
    """Explain what `apply` takes where a script was named.

    Raises:
        UsageError: The file is a script.
    """
    if not file.endswith(".py"):
        return
    best = "best.yaml"
    hint = f"autotune apply {best} -- python {file}"
    if not Path(best).is_file():
        hint = f"search first: autotune search {file}; that writes {best}; then: {hint}"
    raise UsageError(f"{file} is a script; apply takes the file that a search wrote", hint=hint)


def diff_text(best: BestConfig, name: str, pick: PickPart) -> str:
    """Return the changes of a pick, a line per knob."""
    from autotune.model.config import value_text
    from autotune.model.effect import Effect
    from autotune.report.text.answer_screen import TRAINING

    if not pick.changes:
        others = {"likely": "not confirmed", "fastest": "changes the training"}
        more = "".join(
            f"\n{other}, {why}: --pick {other}" for other, why in others.items() if other in best.picks
        )
        return f"{name}: your unchanged script{more}\n"
    rows = [
        (
            c.knob,
            value_text(best.baseline.knobs.get(c.knob)) or "unread",
            value_text(c.value),
            f"{_DELIVERY.get(c.how, c.how)} {c.spelling}".strip(),
        )
        for c in pick.changes
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{k:<{widths[0]}}  {a:>{widths[1]}} -> {b:<{widths[2]}}  by {how}" for k, a, b, how in rows]
    return "\n".join([f"{name}: {claim_text(pick)}; {TRAINING[Effect[pick.effect]]}", *lines]) + "\n"


def claim_text(pick: PickPart) -> str:
    """Return the claim of the search for a pick, as in ``2.26x [2.09, 2.45]``.

    A pick that is not confirmed has no interval: ``2.18x in 3 runs, not confirmed``.
    """
    from autotune.answer.outcome import candidate_text
    from autotune.model.measurement import Estimate

    low, high = pick.speedup.low, pick.speedup.high
    known = Estimate(
        value=pick.speedup.value,
        low=low or 0.0,
        high=math.inf if high is None else high,
        n=pick.speedup.n,
        unit=pick.speedup.unit,
    )
    if pick.runs:
        return candidate_text(known, pick.runs)
    ends = f" [{low:.2f}, {high:.2f}]" if known.is_bounded else ""
    return f"{known.value:.2f}x{ends}"


def plain_command(changes: Sequence[Change], run: Command) -> str:
    """Return the command line and variables of a pick, with the remaining values as comments.

    Knobs that make a step together are all in the line, or all in the comments. A line thus never trains with
    a batch other than that of the pick or the script.
    """
    from autotune.export.formats.command import command_line
    from autotune.export.formats.content import TunedValues, way_of, whole

    start = [run.python, *run.options, *(("-m", run.module) if run.module else (run.script,))]
    tuned = TunedValues(changes=tuple(changes))
    exported = whole(lambda tuned: command_line(tuned, start, run.args, os.environ), tuned)
    inside = [change for change in changes if change.knob not in exported.included]
    lines = [f"# {c.knob}={c.value}: {way_of(c)}, needs `autotune apply`" for c in inside]
    if run.launcher:
        lines.append(f"# without {run.launcher}, whose variables the script needs: start it with that")
    return "\n".join([*lines, exported.text])


def _under_torchrun(run: Command, *, typed: bool) -> Command:
    """Return the command without its launcher if torchrun has started this process as one of several.

    Raises:
        UsageError: A launcher was typed in each of them.
    """
    from dataclasses import replace

    if not run.launcher or not _is_rank():
        return run
    if typed:
        raise UsageError(
            f"torchrun has started this process already, and {run.launcher} would start others in each",
            hint="name the script: torchrun ... -m autotune apply best.yaml -- python train.py ...",
        )
    return replace(run, launcher="")


def _is_rank() -> bool:
    """Return whether torchrun has started this process as one of several."""
    return {"TORCHELASTIC_RUN_ID", "RANK"} <= os.environ.keys()


def _fitting(
    given: BestFile, pick: PickPart, changes: Sequence[Change], run: Command, *, strict: bool
) -> tuple[Sequence[Change], Mapping[str, Value]]:
    """Return the changes that fit this script, for a file that no search has written for it.

    Returns:
        The changes, and the script's own values.

    Raises:
        NotApplied: One does not fit, and `strict` requires all of them.
    """
    if _is_rank():
        # Each process would run the script, and they have to agree.
        print("autotune: warning: changes are not checked under a launcher of your own", file=sys.stderr)
        return changes, given.best.baseline.knobs
    found = given.fitting(pick, changes, run)
    if found.notes and strict:
        raise NotApplied("; ".join(found.notes), hint="without --strict the training starts all the same")
    for note in found.notes:
        print(f"autotune: warning: {note}", file=sys.stderr)
    return found.changes, {**given.best.baseline.knobs, **found.own}


def _check(best: BestConfig, pick: PickPart, run: Command, *, force: bool) -> bool:
    """Report differences from the search's machine; refuse a changed script under a patch.

    Returns:
        True if the script is not the one of the search.
    """
    import hashlib

    from autotune.export.best_config import differences
    from autotune.inspection.host import host_facts

    sha256 = hashlib.sha256(Path(run.inspected).read_bytes()).hexdigest()
    found = differences(best, host_facts(), torch=_torch_version(run), script_sha256=sha256)
    relying = [change.knob for change in pick.changes if change.how in IN_PROCESS]
    if "script" in found and relying and not force:
        raise NotApplied(
            f"{run.title} is not the script that was searched, and these knobs rely on its code: "
            + ", ".join(relying),
            hint="search again, or apply it nevertheless: --force",
        )
    for sentence in found.values() if pick.changes else ():
        print(f"warning: {sentence}; the gain may not hold", file=sys.stderr)
    return "script" in found


def _torch_version(run: Command) -> str:
    """Return torch's version in the script's interpreter, or "" if it has none."""
    from importlib import metadata

    if run.python != sys.executable:
        from autotune.inspection.interpreter import interpreter

        return interpreter(run.python, run.options).versions.get("torch", "")
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _launch(changes: Sequence[Change], run: Command) -> Launch:
    from autotune.space.launch_command import build_launch
    from autotune.space.training_environment import user_environment

    return build_launch(
        script=run.script,
        args=run.args,
        python=run.python,
        cwd=str(Path.cwd()),
        env=user_environment(os.environ, keep_loggers=True, trial=False),
        changes=changes,
        protect=False,
        measure=False,
        module=run.module,
        options=run.options,
        launcher=run.launcher,
        source=run.source,
    )


def _run(
    given: BestFile,
    name: str,
    pick: PickPart,
    launch: Launch,
    run: Command,
    *,
    own: Mapping[str, Value],
    strict: bool,
) -> int:
    from dataclasses import replace

    from autotune.launch.direct_run import run_plain
    from autotune.model.config import config_text

    best = given.best
    if not launch.changes:
        print(f"autotune: {name} is your unchanged script", file=sys.stderr)
    else:
        config = config_text({change.knob: change.value for change in launch.changes})
        print(f"autotune: {name}: {config}", file=sys.stderr)
    if pick.runs:
        go_on = f"; confirm it: {given.resume()}" if given.resume() else ""
        print(f"autotune: {name}: {claim_text(pick)}{go_on}", file=sys.stderr)
    if pick.advice:
        print(f"autotune: {pick.advice}", file=sys.stderr)
    launch = replace(launch, env={**_cache_variables(best, pick, run), **launch.env})
    if variables := _set_text(launch):
        print(f"autotune: sets {variables}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="autotune-apply-", ignore_cleanup_errors=True) as folder:
        return run_plain(launch, Path(folder), own=own, strict=strict)


def _set_text(launch: Launch) -> str:
    """Return every variable that autotune sets for the script, in shell notation: ``OMP_NUM_THREADS=2``."""
    import shlex

    from autotune.text.redact import redact

    changed = {name: value for name, value in launch.env.items() if os.environ.get(name) != value}
    return redact(" ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())))


def _cache_variables(best: BestConfig, pick: PickPart, run: Command) -> dict[str, str]:
    """Return variables with a copy of the search's compile caches for this config, if they fit here."""
    import hashlib

    from autotune.cli.open_study import compiled_for
    from autotune.errors import AutotuneError
    from autotune.launch.workspace.compile_caches import lent

    try:
        sha256 = hashlib.sha256(Path(run.inspected).read_bytes()).hexdigest()
        published = compiled_for(best.study.id, pick.trial, _host(run), sha256)
        return {} if published is None else lent(published)
    except (AutotuneError, OSError):
        return {}


def _host(run: Command) -> HostFacts:
    """Return the facts of this machine with the versions of the script's interpreter."""
    from dataclasses import replace

    from autotune.inspection.host import host_facts
    from autotune.inspection.interpreter import interpreter

    host = host_facts()
    if run.python == sys.executable:
        return host
    found = interpreter(run.python, run.options)
    return replace(host, python=found.version, versions=found.versions)
