"""`autotune verify`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Allow, JsonAtEnd, JsonLines, Pick, Python, Quiet, Share, Wait
from autotune.errors import EXIT_INTERRUPTED, EXIT_NO, EXIT_STOPPED, EXIT_YES, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.driver.verification import Verified
    from autotune.export.best_config import BestConfig
    from autotune.model.facts import Facts
    from autotune.model.measurement import Estimate

VERIFY_SCHEMA = "autotune.verify/v1"
EXIT_SLOWER = 7
"""Slower beyond doubt, or its loss is worse: the config does harm here."""

_CODES = {
    "faster": EXIT_YES,
    "no_difference": EXIT_NO,
    "failed": EXIT_NO,
    "slower": EXIT_SLOWER,
    "worse": EXIT_SLOWER,
}
_STOPPED = {"interrupted": EXIT_INTERRUPTED, "signal": EXIT_STOPPED, "script": UsageError.exit_code}


def verify(
    file: Annotated[
        str,
        typer.Argument(
            metavar="best.yaml", help="The file that a search wrote, or the id of a search on the service."
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- CMD", help="After --: python train.py ... Default: the command that was searched."
        ),
    ] = None,
    *,
    pick: Pick = "",
    budget: Annotated[str, typer.Option(metavar="10m", help="Wall time.")] = "10m",
    pairs: Annotated[int, typer.Option(metavar="N", help="Pairs at most; 3 or more.")] = 10,
    at_least: Annotated[
        float, typer.Option(metavar="1.5", help="Speed-up that the lower bound must exceed.")
    ] = 1.0,
    python: Python = "",
    allow: Allow = None,
    wait_for_quiet: Annotated[
        str,
        typer.Option(
            metavar="10m",
            envvar="AUTOTUNE_WAIT_FOR_QUIET",
            help="Wait at most this long for other processes to end, before the first run.",
        ),
    ] = "",
    wait: Wait = "",
    share: Share = False,
    json: JsonAtEnd = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
) -> int:
    """Measure a configuration against your script again, in fresh interleaved pairs.

    Exit codes: 0 it is faster; 1 no difference was shown, or it does not run here; 7 it is slower, or its
    loss is worse; 2 usage, or the script was edited meanwhile; 3 the script itself fails; 5 store;
    6 machine, or a knob does not take effect here; 70 internal error; 75 stopped by a signal;
    130 stopped by Ctrl-C.
    """
    import time

    from autotune.cli.outcome import guarded, head_start_s, print_json
    from autotune.driver.spec import budget_s, wait_s
    from autotune.inspection.command_line import check_one_machine
    from autotune.inspection.command_line import verify as check
    from autotune.store.paths import new_label
    from autotune.text.redact import redact

    with guarded(as_json=json, as_lines=jsonl):
        from autotune.cli.best_file import BestFile
        from autotune.cli.remote import best_file

        given = BestFile(best_file(file))
        best = given.best
        name, chosen = best.chosen(pick)
        if pairs < FEWEST:
            raise UsageError(
                f"--pairs {pairs}: a claim needs at least three", hint=f"--pairs {FEWEST} or more"
            )
        if not at_least > 0:
            raise UsageError(f"--at-least {at_least:g} is no ratio", hint="for example --at-least 1.2")
        seconds, quiet_s, turn_s = budget_s(budget), wait_s(wait_for_quiet), wait_s(wait, "--wait")
        run = given.command(command or [], python)
        check_one_machine(run, "verify")
        check(run)
        changes = given.changes(chosen, run, allow=allow or ())
        from autotune.driver import verification
        from autotune.report.terminal.event_stream import EventLines
        from autotune.report.terminal.live_view import Progress

        # Lines for a program on the same terminal would be drawn over.
        live = False if jsonl and sys.stdout.isatty() else None
        progress = Progress(sys.stderr, quiet=quiet, live=live)
        for note in run.notes if not quiet or run.python != sys.executable else ():
            print(note, file=sys.stderr)
        stem = f"{run.module.replace('.', '-')}.py" if run.module else run.script
        try:
            found = verification.verify(
                chosen,
                run,
                changes=changes,
                label="verify-" + new_label(stem, time.time()),
                budget_s=seconds,
                name=name,
                pairs=pairs,
                at_least=at_least,
                head_start_s=head_start_s(),
                wait_for_quiet_s=quiet_s or 0.0,
                wait_s=turn_s,
                share=share,
                listeners=[progress, EventLines(sys.stdout)] if jsonl else [progress],
            )
        finally:
            progress.close()
        other = differs(best, found.study.facts)
        if json or jsonl:
            print_json(as_dict(found, other), line=jsonl)
        else:
            sys.stdout.write(redact(screen(found, other)))
        return exit_code(found)


FEWEST = 3
"""Pairs that allow a claim; as in `autotune.search.confirmation.verification`, without its import."""


def exit_code(found: Verified) -> int:
    """Return the exit code of a stopped run, or that of the verdict."""
    return _STOPPED.get(found.study.stopped, _CODES[found.verdict])


def differs(best: BestConfig, facts: Facts | None) -> dict[str, str]:
    """Return a sentence for each difference from the conditions of the file, by part."""
    if facts is None:
        return {}
    from autotune.driver.spec import version
    from autotune.export.best_config import differences

    then, host = best.environment, facts.host
    seen = facts.run.versions if facts.run is not None else {}
    torch = seen.get("torch") or host.versions.get("torch")
    found = differences(best, host, torch=torch, script_sha256=facts.script.sha256)
    rows = (
        ("cpu", "the CPU", host.cpu_model, then.cpu),
        ("python", "Python", seen.get("python") or host.python, then.python),
        ("autotune", "autotune", version(), best.provenance.autotune),
    )
    for key, what, here, there in rows:
        if here and there and here != there:
            found[key] = f"{what} is {here}, the search ran with {there}"
    return found


def as_dict(found: Verified, other: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the result as an object, schema ``autotune.verify/v1``."""
    compared = found.comparison
    return {
        "schema": VERIFY_SCHEMA,
        "pick": found.request.pick,
        "knobs": dict(found.request.config),
        "verdict": found.verdict,
        "because": found.because or None,
        "sentence": sentence(found),
        "why": why(found) or None,
        "at_least": found.request.at_least,
        "speedup": None if compared is None else _ratio(compared.speedup),
        "identical": None if found.identical is None else _ratio(found.identical),
        "loss": None
        if compared is None
        else {"verdict": compared.loss.verdict, "reason": compared.loss.reason},
        "notes": notes(found),
        "failure": _failure(found) or None,
        "differs": dict(other or {}),
        "stopped": found.study.stopped,
        "study": found.study.spec.label,
        "study_dir": str(found.study_dir),
        "exit": exit_code(found),
    }


def sentence(found: Verified) -> str:
    """Return the verdict in words."""
    at_least = found.request.at_least
    wanted = f" than {at_least:.2f} times your script" if at_least > 1.0 else " than your script"
    ran = found.comparison is not None
    return {
        "faster": "faster" + (f", by {at_least:.2f} times at least" if at_least > 1.0 else ""),
        "no_difference": f"not shown to be faster{wanted}",
        "slower": "slower than your script",
        "worse": "its loss is worse",
        "failed": "it does not run here every time" if ran else "it does not run here",
    }[found.verdict]


def why(found: Verified) -> str:
    """Return why no difference is claimed, in words, or "" if one is."""
    from autotune.compare.control import claim_bar

    compared = found.comparison
    if found.because == "too_few_pairs":
        return "a claim needs at least three pairs: give more time, --budget 30m"
    if found.because == "lost_runs":
        return "runs failed, so fewer than the three pairs of a claim are left: verify again"
    if found.because == "script_failed":
        return "nothing is claimed: your unchanged script failed in one of its runs"
    if found.because == "unsteady":
        bar = claim_bar(found.identical)
        return f"nothing is claimed: your script differs from itself by up to {bar:.2f} times here"
    if found.because == "loss_unclear":
        return "it is faster, but its loss is not shown to be as good"
    if found.because == "not_cleared" and compared is not None:
        wanted = max(1.0, found.request.at_least)
        return f"the lower end of its ratio, {compared.speedup.low:.2f}, is not above {wanted:.2f}"
    return ""


def notes(found: Verified) -> list[str]:
    """Return the remarks that were recorded with the figures, a whole sentence each."""
    from autotune.compare.disturbances import busy_notes, clocks_apart, left_out, marked_runs

    study, configs = found.study, [found.request.config]
    seen = [*marked_runs(study, configs), *clocks_apart(study, configs), *left_out(study)]
    return [*seen, *busy_notes(study)]


def screen(found: Verified, other: Mapping[str, str] | None = None) -> str:
    """Return the result as a screen for users."""
    from autotune.model.config import config_text
    from autotune.report.view.summary import control_text, plural

    compared, study = found.comparison, found.study
    rows = [(found.request.pick, f"{sentence(found)}   {config_text(found.request.config)}")]
    if compared is not None:
        count = compared.speedup.n
        shown = f"   {plural(count, 'pair')}" if count >= FEWEST else ""
        rows.append(("ratio", f"{control_text(compared.speedup)}{shown}"))
        rows += [("loss", compared.loss.reason)] if compared.loss.reason else []
    if found.because not in ("", "not_cleared"):  # the latter is evident from the interval
        rows.append(("note", why(found)))
    rows += [("note", text) for text in notes(found)]
    if failure := _failure(found):
        rows.append(("failed", failure))
    if found.identical is not None:
        rows.append(("control", f"your script against itself: {control_text(found.identical)}"))
    if study.stopped == "script":
        changed = study.changed or f"{study.spec.title} was changed meanwhile"
        rows.append(("note", f"{changed}: this holds for the script before the change"))
    elif study.stopped in _STOPPED:
        rows.append(("note", "it was stopped: these are the measurements until then"))
    rows += [("differs" if i == 0 else "", text) for i, text in enumerate((other or {}).values())]
    rows.append(("look", f"autotune show {study.spec.label}"))
    return "".join(f"{key:<8}{text}\n" for key, text in rows)


def _failure(found: Verified) -> str:
    """Return the failure of the configuration, or of the unchanged script if that decided, or ""."""
    from autotune.compare.failed_configs import broken
    from autotune.model.config import Config
    from autotune.model.trial import PAIRED

    study, config, own = found.study, found.request.config, Config()
    failed = broken(study)
    failed_trials = [failed[config]] if config in failed else []
    failed_trials += [failed[own]] if found.because == "script_failed" else []
    failed_trials += [t for t in study.of(config) if t.failure is not None]
    failed_trials += [
        t for t in study.of(own, *PAIRED) if t.failure is not None and found.because == "lost_runs"
    ]
    if not failed_trials or (failure := failed_trials[0].failure) is None:
        return ""
    whose = "your unchanged script: " if failed_trials[0].config == own else ""
    return f"{whose}{failure.kind.words}: {failure.message}"


def _ratio(estimate: Estimate) -> dict[str, Any]:
    import math

    low, high = (x if math.isfinite(x) else None for x in (estimate.low, estimate.high))
    return {
        "value": estimate.value,
        "low": low,
        "high": high,
        "n": estimate.n,
        "confidence": estimate.confidence,
    }
