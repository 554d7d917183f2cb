"""The process behind `autotune ui`: MLflow's web application, served through a gate."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

STORE = "AUTOTUNE_UI_STORE"
KEYS = "AUTOTUNE_UI_KEYS"
REPORT = "AUTOTUNE_UI_REPORT"
"""Environment variables, which other accounts cannot read, unlike a command line."""


def main() -> None:
    """Serve on the listening socket whose descriptor is the only argument, until a signal ends it."""
    import uvicorn

    from autotune.cli.gate import CookieGate, Keys
    from autotune.report.mlflow.connection import server_app
    from autotune.store.paths import own_store

    # Files that are uploaded are for this account alone, as the store is.
    os.umask(0o077)
    uri, keys = os.environ.pop(STORE), Keys.from_text(os.environ.pop(KEYS))
    report = os.environ.pop(REPORT, "")
    # A header on the origin of a request is no proof of it.
    config = uvicorn.Config(
        CookieGate(server_app(uri, own_store(uri)), keys, report=Path(report) if report else None),
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
