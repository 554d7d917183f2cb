"""`autotune ui`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autotune.cli.complete import study_labels
from autotune.cli.open_study import check_address
from autotune.errors import BackendError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

Page = Literal["report", "answer", "table", "charts", "searches"]


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
        Page | None,
        typer.Option(
            help="Page to open: the report, or MLflow's answer, table of trials, charts, all searches. "
            "Default: the report; with a server of your own MLflow's answer."
        ),
    ] = None,
    tracking_uri: Annotated[
        str, typer.Option(metavar="URI", help="Another MLflow store than the search's own.")
    ] = "",
) -> int:
    """Open the report of a study and its MLflow pages, until Ctrl-C; of a search on the service its page."""
    import sys
    import tempfile
    from pathlib import Path

    from autotune.cli.remote import on_server

    if (handle := on_server(study)) is not None:
        handle.status()
        _show(
            handle.client.url, {"page": f"/searches/{handle.id}"}, f"/searches/{handle.id}" if open_it else ""
        )
        return 0

    from autotune.driver.sinks.mlflow_refill import is_due, refill
    from autotune.driver.sinks.sync import study_paths
    from autotune.store.paths import find_study

    found = find_study(study, searches=True)
    if not tracking_uri and is_due():
        print("MLflow's store was broken; filling a new one from the journals ...", file=sys.stderr)
        refill()
    print("reading MLflow's store ...", file=sys.stderr)
    check_address(study, found, tracking_uri)
    uri, paths = study_paths(found, tracking_uri=tracking_uri)
    if not paths:
        message = "MLflow has no records of this study"
        raise BackendError(message, hint=f"send it: {_sending(study, tracking_uri)}")
    if uri.startswith(("http://", "https://")):
        opened = _opened(paths, page or "answer")
        _show(uri.rstrip("/"), paths, opened if open_it else "")
        return 0
    with tempfile.TemporaryDirectory(prefix="autotune-ui-") as folder:
        report = _report(found, paths, Path(folder))
        paths = {"report": "", **paths} if report is not None else paths
        opened = _opened(paths, page or next(iter(paths)))
        return _serve(uri, port, paths, opened if open_it else None, report)


def _sending(study: str | None, tracking_uri: str) -> str:
    """Return the command that fills the store again, because it may have lost data that was sent."""
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


def _report(found: Path, paths: dict[str, str], folder: Path) -> Path | None:
    """Write the study's report with links to its MLflow pages; None if it cannot be made."""
    from autotune.cli.open_study import open_study
    from autotune.driver.sinks.report_writer import write_report

    opened = open_study(found)
    # Relative to the report's own address; the path of a page is a fragment of MLflow's start page.
    links = {name: "." + path for name, path in paths.items()}
    return write_report(folder, opened.study, opened.answer, links=links)


def _serve(uri: str, port: int, paths: dict[str, str], opened: str | None, report: Path | None) -> int:
    import sys

    from autotune.cli.gate import Keys
    from autotune.cli.mlflow_server import serving

    # The page that opens has a link of its own: each one works once.
    first = [] if opened is None else [("", opened)]
    pages = sorted([*first, *paths.items()], key=lambda page: bool(page[1]))
    keys = Keys.new(sum(not path for _, path in pages), sum(bool(path) for _, path in pages))
    # The path follows the link's mark, which browsers keep in a redirect.
    links = {name: keys.link(number) + path[1:] for number, (name, path) in enumerate(pages)}
    try:
        with serving(uri, port, keys, report) as server:
            print("starting MLflow's server; this takes about ten seconds ...", file=sys.stderr)
            server.wait_until_ready()
            _show(server.address, {name: links[name] for name in paths}, links.get("", ""))
            print("each link lets in one browser; Ctrl-C ends the server", file=sys.stderr, flush=True)
            server.wait()
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
