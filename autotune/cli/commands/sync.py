"""`autotune sync`."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.complete import study_labels
from autotune.cli.open_study import check_address
from autotune.cli.options import Json
from autotune.errors import TrackerUnavailable


def sync(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    wait: Annotated[str, typer.Option(metavar="60s", help="Time limit.")] = "60s",
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="Another MLflow store than the search's own.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Send everything again.")] = False,
    json: Json = False,
) -> int:
    """Send the records of a study that MLflow has not received."""
    from autotune.cli.outcome import guarded, print_json

    with guarded(as_json=json):
        from autotune.config_files.duration import duration_s
        from autotune.store.paths import find_study

        deadline_s, path = duration_s(wait), find_study(study, searches=True)
        check_address(study, path, tracking_uri)
        from autotune.driver.sinks.mlflow_refill import is_due, refill
        from autotune.driver.sinks.scaling_sync import send_if_scaling
        from autotune.driver.sinks.sync import sync_study

        if not tracking_uri and is_due():
            refill(deadline_s)
        is_sent = send_if_scaling(path, tracking_uri)
        unsent = 0 if is_sent else sync_study(path, deadline_s, tracking_uri=tracking_uri, again=again)
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
        # Data that a store has lost since is not checked.
        print(f"everything was sent to MLflow:  {path.name}; once more: autotune sync {path.name} --again")
    return 0
