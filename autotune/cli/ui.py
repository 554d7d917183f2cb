"""`autotune ui`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from autotune.cli.complete import study_labels
from autotune.errors import BackendError, UsageError

Page = Literal["answer", "table", "charts", "searches"]

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""No telemetry, and none of the background workers that only serve jobs of the GenAI pages."""

START_S = 180.0
"""MLflow's server took 75 s to answer on a machine with a load of 18."""


def ui(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Label, id, or the beginning of one; else the latest.", autocompletion=study_labels
        ),
    ] = None,
    *,
    port: Annotated[int, typer.Option(help="Of the server; 0 takes a free one.")] = 0,
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
    uri, paths = study_paths(find_study(study, searches=True), tracking_uri=tracking_uri)
    if not paths:
        message = "MLflow holds nothing of this study"
        raise BackendError(message, hint=f"send it: {_sending(study, tracking_uri)}")
    opened = _opened(paths, page)
    if uri.startswith(("http://", "https://")):
        _show(uri.rstrip("/"), paths, opened if open_it else "")
        return 0
    return _serve(uri, port or _free_port(), paths, opened if open_it else "")


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
    import os
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {**QUIET, **os.environ}
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    # Ended by anybody, this process takes the server with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("starting MLflow's server; that takes some ten seconds ...", file=sys.stderr)
    try:
        _wait(server, port)
        _show(f"http://127.0.0.1:{port}", paths, opened)
        print("Ctrl-C ends it", file=sys.stderr)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _end(server)


def _wait(server: object, port: int) -> None:
    import subprocess
    import time
    import urllib.error
    import urllib.request

    assert isinstance(server, subprocess.Popen)
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if server.poll() is not None:
            message = f"MLflow's server ended with code {server.returncode}"
            raise BackendError(message, hint=f"is port {port} in use? choose another: --port")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise BackendError(
        f"MLflow's server did not answer within {START_S:.0f} s", hint="try again: autotune ui"
    )


def _show(base: str, paths: dict[str, str], opened: str) -> None:
    from autotune.core.redact import redact

    for name, path in paths.items():
        print(f"{name:<9}{redact(base)}{path}", flush=True)
    if opened:
        import webbrowser

        webbrowser.open(base + opened)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(server: object) -> None:
    import os
    import signal
    import subprocess

    assert isinstance(server, subprocess.Popen)
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(10)
