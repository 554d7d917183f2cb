"""`autotune ui`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from autotune.cli.complete import study_labels
from autotune.cli.opened import check_address
from autotune.errors import BackendError, UsageError

Page = Literal["answer", "table", "charts", "searches"]


def ui(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Label, id, or the beginning of one; else the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the server; 0 takes a free one.")] = 0,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    page: Annotated[
        Page,
        typer.Option(help="What is opened: the answer, every trial in a table, charts, all searches."),
    ] = "answer",
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="Of another MLflow that has it, not the search's own.")
    ] = "",
) -> int:
    """Show a study in the MLflow UI, on this machine only, until Ctrl-C."""
    import sys

    from autotune.driver.sync import study_paths
    from autotune.store.paths import find_study

    print("reading MLflow's store ...", file=sys.stderr)
    path = find_study(study, searches=True)
    check_address(study, path, tracking_uri)
    uri, paths = study_paths(path, tracking_uri=tracking_uri)
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

    from autotune.cli.server import serving

    try:
        with serving(uri, port) as server:
            print("starting MLflow's server; that takes some ten seconds ...", file=sys.stderr)
            server.wait_until_it_answers()
            _show(server.address, paths, opened)
            print("Ctrl-C ends it", file=sys.stderr, flush=True)
            server.wait_until_it_ends()
    except KeyboardInterrupt:
        pass
    return 0


def _show(base: str, paths: dict[str, str], opened: str) -> None:
    from autotune.core.redact import redact

    for name, path in paths.items():
        print(f"{name:<9}{redact(base)}{path}", flush=True)
    if opened:
        import webbrowser

        webbrowser.open(base + opened)
