"""Connection to an MLflow store, and values in the form of its records. The only importer of mlflow.

Only `MlflowClient` is used, as the state of the fluent interface belongs to the user's code.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

from autotune.report.mlflow.local_store import artifact_folder, close_tree, plain_uri, prepare
from autotune.report.mlflow.store import SETTINGS, border, loggers_kept, sqlite_path
from autotune.report.view import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

TAG_CHARACTERS = 4900
"""Longest tag that every store takes."""
_PARAM_CHARACTERS = 500


class Connection:
    """Client of one store.

    Args:
        uri: Address of the store.
        own: Database of the default store, which is kept private and replaced if it is broken; None for a
            store of the user.
        clean: Removes secrets from every text before it is sent.
    """

    def __init__(self, uri: str, *, own: Path | None, clean: Callable[[str], str]) -> None:
        self.uri = uri
        self.clean = clean
        self.client: Any = None
        self._own = own
        self.database = own or sqlite_path(uri)
        self.entities: Any = None
        self.version = ""
        """Version of the local installation."""
        self._served: str | None = None

    @property
    def is_served(self) -> bool:
        """Whether the store is a server."""
        return self.uri.startswith(("http://", "https://"))

    def open(self) -> None:
        """Import MLflow and check that the store responds; a second call does nothing.

        Raises:
            TrackerUnavailable: The store does not respond.
        """
        if self.client is not None:
            return
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        # The import of tqdm warns in a notebook without ipywidgets; none of its bars is shown.
        warnings.filterwarnings("ignore", message="IProgress not found")
        with border(self.uri), loggers_kept():
            import mlflow
            import mlflow.entities
            from mlflow import MlflowClient

            # The import has just enabled a message for every created table.
            logging.getLogger("mlflow").setLevel(logging.WARNING)
            # It logs every database error with its statement in addition to raising it.
            logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

            if self.database is not None:
                prepare(self.database, _create_database, own=self._own is not None)
            client = MlflowClient(tracking_uri=plain_uri(self._own) if self._own else self.uri)
            client.search_experiments(max_results=1)
            self.version = str(mlflow.__version__)
            self.entities = mlflow.entities
            self.client = client

    def ui_version(self) -> str:
        """Return the version of the serving MLflow: the server's, or the local installation's."""
        if not self.is_served:
            return self.version
        if self._served is None:
            from mlflow.utils.credentials import get_default_host_creds
            from mlflow.utils.rest_utils import http_request

            # MLflow provides the credentials of the user.
            response: Any = http_request(get_default_host_creds(self.uri), "/version", "GET")
            self._served = str(response.text) if response.status_code == 200 else ""
        return self._served

    def runs(self, experiment_id: str, condition: str) -> list[Any]:
        """Return the runs of an experiment that meet a condition, oldest first."""
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [experiment_id],
                condition,
                order_by=["attributes.start_time ASC"],
                max_results=1000,
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    def close_artifacts(self) -> None:
        """Give artifacts of the default store the modes of the store; MLflow uses those of the umask."""
        if self._own is not None:
            close_tree(artifact_folder(self._own).resolve())

    def metric(self, name: str, value: float | None, timestamp_ms: int, step: int = 0) -> list[Any]:
        """Return a metric; nothing for a missing or infinite value."""
        if value is None or not math.isfinite(value):
            return []
        return [self.entities.Metric(name, summary.significant(value), timestamp_ms, step)]

    def params(self, params: Mapping[str, str]) -> list[Any]:
        """Return parameters."""
        return [self.entities.Param(key, value) for key, value in params.items()]

    def tags(self, tags: Mapping[str, str]) -> list[Any]:
        """Return tags of a run."""
        return [self.entities.RunTag(key, value) for key, value in self.texts(tags).items()]

    def texts(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return tags of a new run."""
        return {key: self._short(value, TAG_CHARACTERS) for key, value in tags.items()}

    def values(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return parameters without secrets, and cut."""
        return {key: self._short(value, _PARAM_CHARACTERS) for key, value in params.items()}

    def _short(self, text: str, most: int) -> str:
        clean = self.clean(text)
        return clean if len(clean) <= most else clean[: most - 1] + "…"


def server_app(uri: str, own: Path | None = None) -> Any:
    """Return MLflow's web application for a store; for a dedicated process.

    Its proxy for artifacts is off: artifacts of a local store are read from their folder.

    Args:
        uri: Address of the store.
        own: As in `Connection`.
    """
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    database = own or sqlite_path(uri)
    address = plain_uri(own) if own is not None else uri
    root = artifact_folder(database).as_uri() if database is not None else None
    initialize_backend_stores(
        backend_store_uri=address, registry_store_uri=address, default_artifact_root=root
    )
    return app


def _create_database(path: Path) -> None:
    """Create MLflow's tables; takes about seven seconds."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    # MLflow's default is below the working folder, whose name it writes into SQL without escaping. A new
    # database is in a temporary folder beside its final place.
    store = SqlAlchemyStore(plain_uri(path), artifact_folder(path.parent).as_uri())
    store.engine.dispose()
