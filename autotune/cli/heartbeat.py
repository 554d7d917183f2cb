"""Reports to the service how long a training has run with a configuration of one of its searches."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, UsageError
from autotune.store.paths import is_study_id

if TYPE_CHECKING:
    from types import TracebackType

    from autotune.service.client import Client

log = logging.getLogger(__name__)

PERIOD_S = 300.0
"""A training that is killed loses at most this much of its record."""


class Heartbeat:
    """Reports from a thread of its own while the block runs; a service that is away costs no time.

    Args:
        client: Of the service.
        label: Of the study, which is the search's id in lower case.

    Raises:
        UsageError: The study is not that of a search on a service.
    """

    def __init__(self, client: Client, label: str, *, period_s: float = PERIOD_S) -> None:
        if not is_study_id(label.upper()):
            raise UsageError(
                "--report needs a configuration that a service found",
                hint="fetch it from there: autotune apply --from-server",
            )
        self._client, self._id, self._period_s = client, label.upper(), period_s
        self._run = secrets.token_hex(8)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="autotune-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._began_s = time.monotonic()
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(10.0)

    def _report(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._period_s)
            body = {"run": self._run, "seconds": time.monotonic() - self._began_s}
            try:
                self._client.request("POST", f"/api/v1/searches/{self._id}/applied", json=body)
            except AutotuneError as error:
                log.warning("the time of this training was not reported: %s", error.message)
                return
