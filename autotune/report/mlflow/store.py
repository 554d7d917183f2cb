"""Location of the MLflow store, and the only place that converts its errors; MLflow is not imported."""

from __future__ import annotations

import contextlib
import logging
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import TrackerUnavailable
from autotune.shortage import shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger(__name__)

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Defaults for this process; the user's settings take precedence. The outbox does the retrying."""

_UNAVAILABLE = (401, 403, 404, 408, 429)


class Refused(TrackerUnavailable):
    """MLflow responds but rejects this record; sending it again changes nothing."""


def absolute_uri(uri: str, cwd: str) -> str:
    """Return the same store for any working directory: a relative SQLite path is made absolute."""
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        path = uri[len("sqlite:///") :]
        if path and not path.startswith((":memory:", "file:")):
            return f"sqlite:///{Path(cwd, path).absolute()}"
    return uri


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of a SQLite store; None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    path = uri[len("sqlite:///") :].split("?", maxsplit=1)[0]
    return Path(path) if path and not path.startswith((":memory:", "file:")) else None


@contextlib.contextmanager
def border(uri: str) -> Generator[None, None, None]:
    """Convert every error of MLflow into one of this program."""
    try:
        yield
    except TrackerUnavailable:
        raise
    except Exception as error:
        shown = _without_userinfo(uri)
        path = sqlite_path(uri)
        lacks = shortage(error, places=() if path is None else (path,))
        if lacks is not None:
            message = f"MLflow at {shown} cannot be used: {lacks.message}"
            raise TrackerUnavailable(message, hint=lacks.hint) from error
        code: Callable[[], Any] | None = getattr(error, "get_http_status_code", None)
        status = int(code()) if code is not None else 0
        # MLflow includes the whole address in its messages, also a password.
        first_line = re.sub(r"://[^\s/@]+@", "://", str(error)).strip().split("\n")[0][:300]
        text = f"{type(error).__name__}: {first_line}"
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)) or (
            400 <= status < 500 and status not in _UNAVAILABLE
        ):
            log.debug("MLflow refused a record", exc_info=True)
            message = f"MLflow at {shown} does not take a record: {text}"
            raise Refused(message) from error
        message = f"MLflow at {shown} cannot be reached: {text}"
        raise TrackerUnavailable(message, hint="Nothing is lost; `autotune sync` sends it later.") from error


@contextlib.contextmanager
def loggers_kept() -> Generator[None, None, None]:
    """Restore the loggers, which importing and migrating reconfigures for the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    before = [
        (one, one.disabled)
        for name, one in root.manager.loggerDict.items()
        if isinstance(one, logging.Logger) and not name.startswith(("mlflow", "alembic"))
    ]
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for one, disabled in before:
            one.disabled = disabled
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _without_userinfo(uri: str) -> str:
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError:
        return "the given address"
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]).geturl()
