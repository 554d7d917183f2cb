"""`autotune sync`."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.complete import study_labels
from autotune.cli.opened import check_address
from autotune.cli.options import Json
from autotune.errors import TrackerUnavailable


def sync(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Label, id, or the beginning of one; else the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    wait: Annotated[str, typer.Option(metavar="60s", help="Give up after this long.")] = "60s",
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="Of the MLflow to send to, not the search's own.")
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Send everything: into a store that lost it, or another one.")
    ] = False,
    json: Json = False,
) -> int:
    """Send to MLflow what it has not received of a study."""
    from autotune.cli.ended import guarded, print_json

    with guarded(as_json=json):
        from autotune.edge.duration import duration_s
        from autotune.store.paths import find_study

        deadline_s, path = duration_s(wait), find_study(study, searches=True)
        check_address(study, path, tracking_uri)
        from autotune.driver.sync import sync_study

        unsent = sync_study(path, deadline_s, tracking_uri=tracking_uri, again=again)
        if unsent:
            raise TrackerUnavailable(
                f"{unsent} records of {path.name} could not be sent to MLflow",
                hint="nothing is lost; is the store reachable? autotune doctor --check-mlflow",
            )
    if json:
        print_json({"schema": "autotune.sync/v1", "study": path.name, "unsent": 0, "exit": 0})
    elif again:
        print(f"MLflow has everything of {path.name}")
    else:
        # What a store has lost since, nobody has asked it.
        print(f"MLflow was sent everything of {path.name}; once more: autotune sync {path.name} --again")
    return 0
