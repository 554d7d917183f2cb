"""`autotune resume`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from autotune.cli.complete import study_labels
from autotune.cli.options import ExitZero, JsonAtEnd, JsonLines, Quiet, Share, Wait, WaitForQuiet


def resume(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    budget: Annotated[
        str, typer.Option(metavar="30m", help="Wall time from now. Default: what is left.")
    ] = "",
    wait_for_quiet: WaitForQuiet = "",
    wait: Wait = "",
    share: Share = False,
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Further trials at most. Default: what is left.")
    ] = None,
    json: JsonAtEnd = False,
    jsonl: JsonLines = False,
    quiet: Quiet = False,
    exit_zero: ExitZero = False,
) -> int:
    """Continue a search that was stopped or inconclusive; no finished trial is run again.

    Other settings are those of the search. Exit codes are those of `autotune search`.
    """
    from autotune.cli.outcome import guarded, last_words, searched
    from autotune.driver.spec import budget_s, wait_s

    with guarded(as_json=json, as_lines=jsonl):
        from autotune.cli.remote import on_server

        if (handle := on_server(study)) is not None:
            return _resume_there(handle, budget)
        seconds = budget_s(budget) if budget else None
        quiet_s, turn_s = wait_s(wait_for_quiet), wait_s(wait, "--wait")
        from autotune.store.paths import find_study, is_in_home

        path = find_study(study, searches=True)
        if not is_in_home(path):
            from autotune.cli.open_study import open_study
            from autotune.report.view.summary import user_command

            command = user_command(open_study(path).study)
            print(f"{path} does not lie in this account's home; it runs: {command}", file=sys.stderr)
        from autotune.driver import tune
        from autotune.report.terminal.event_stream import EventLines
        from autotune.report.terminal.live_view import Progress

        # Lines for a program on the same terminal would be drawn over.
        drawn = False if jsonl and sys.stdout.isatty() else None
        progress = Progress(sys.stderr, quiet=quiet, live=drawn)
        try:
            end = tune.resume_search(
                path,
                budget_s=seconds,
                wait_for_quiet_s=quiet_s,
                wait_s=turn_s,
                share=share,
                trials=trials,
                listeners=[progress, EventLines(sys.stdout)] if jsonl else [progress],
                last_words=last_words(
                    close=progress.close, as_json=json, exit_zero=exit_zero, as_lines=jsonl
                ),
            )
        finally:
            progress.close()
        return searched(end, as_json=json, exit_zero=exit_zero, as_lines=jsonl)


def _resume_there(handle: Any, budget: str) -> int:
    """Resume a search on the service with a further budget; by default as long as the first one."""
    from autotune.driver.spec import budget_s

    row = handle.resume(budget_s(budget) if budget else handle.status()["budget_s"])
    print(f"{row['state']}: {row['reason']}; follow it: autotune logs -f {handle.id}")
    return 0
