"""`autotune ui`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from autotune.cli.complete import study_labels
from autotune.cli.open_study import check_address
from autotune.errors import BackendError, UsageError

Page = Literal["answer", "table", "charts", "searches"]


def ui(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of a study, or its beginning. Default: the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 for a free one.")] = 0,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    page: Annotated[
        Page,
        typer.Option(help="Page to open: the answer, a table of trials, charts, or all searches."),
    ] = "answer",
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="Another MLflow store than the search's own.")
    ] = "",
) -> int:
    """Open a study in the MLflow UI on this machine, until Ctrl-C."""
    import sys

    from autotune.driver.mlflow_refill import is_due, refill
    from autotune.driver.sync import study_paths
    from autotune.store.paths import find_study

    found = find_study(study, searches=True)
    if not tracking_uri and is_due():
        print("MLflow's store was broken; filling a new one from the journals ...", file=sys.stderr)
        refill()
    print("reading MLflow's store ...", file=sys.stderr)
    check_address(study, found, tracking_uri)
    uri, paths = study_paths(found, tracking_uri=tracking_uri)
    if not paths:
        message = "MLflow holds nothing of this study"
        raise BackendError(message, hint=f"send it: {_sending(study, tracking_uri)}")
    opened = _opened(paths, page)
    if uri.startswith(("http://", "https://")):
        _show(uri.rstrip("/"), paths, opened if open_it else "")
        return 0
    return _serve(uri, port, paths, opened if open_it else "")


def _sending(study: str | None, tracking_uri: str) -> str:
    """The command that fills the store: what it lacks was perhaps sent before, and lost there."""
    import shlex

    there = ["--tracking-uri", tracking_uri] if tracking_uri else []
    return shlex.join(["autotune", "sync", *([study] if study else []), "--again", *there])


def _opened(paths: dict[str, str], page: str) -> str:
    if page in paths:
        return paths[page]
    message = f"MLflow has no page `{page}` of this study"
    once = page == "searches" and "table" in paths
    why = "it was searched once only" if once else "no view is written for this version of MLflow"
    raise UsageError(message, hint=f"{why}; there is: {', '.join(paths)}")


def _serve(uri: str, port: int, paths: dict[str, str], opened: str) -> int:
    import sys

    from autotune.cli.gate import Keys
    from autotune.cli.mlflow_server import serving

    keys = Keys.new(len(paths) + 1)
    # A path is all behind the mark, which browsers keep when the link leads on.
    links = {name: keys.link(number) + path[1:] for number, (name, path) in enumerate(paths.items())}
    try:
        with serving(uri, port, keys) as server:
            print("starting MLflow's server; that takes some ten seconds ...", file=sys.stderr)
            server.wait_until_it_answers()
            _show(server.address, links, keys.link(len(paths)) + opened[1:] if opened else "")
            print("each link lets in one browser; Ctrl-C ends the server", file=sys.stderr, flush=True)
            server.wait_until_it_ends()
    except KeyboardInterrupt:
        pass
    return 0


def _show(base: str, paths: dict[str, str], opened: str) -> None:
    from autotune.text.redact import redact

    for name, path in paths.items():
        print(f"{name:<9}{redact(base)}{path}", flush=True)
    if opened:
        import webbrowser

        webbrowser.open(base + opened)
