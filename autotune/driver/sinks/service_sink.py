"""Sink that reports a search to the service that started it, through the journal's outbox.

The service starts a search with a file (`REPORT`) that holds its address and a token for this search. Reports
never delay a trial, and an unreachable service costs no time: rows stay in the journal until they are
acknowledged.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.driver.study_facts import study_facts, trial_facts
from autotune.errors import BackendError
from autotune.report.mlflow.recorder import Refused
from autotune.store.outbox import PROTOCOL, REPORT
from autotune.text.redact import redact_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

HEARTBEAT_S: Final = 5.0
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Destination of reports.

    Args:
        url: Address of the search on the service: ``http://host:port/api/v1/searches/ID``.
        token: Token for this search only.
        epoch: Number of the search's life.
    """

    url: str
    token: str
    epoch: int


def report_of(path: str) -> Report:
    """Return the contents of a report file, read at each use as a service may move to another port.

    Raises:
        BackendError: It cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return Report(url=str(found["url"]), token=str(found["token"]), epoch=int(found["epoch"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(f"the service's report file {path} cannot be read: {error}") from error


class ServiceSink:
    """The sink of a service.

    Args:
        path: Path of the report file.
        study: Returns the study so far.
    """

    def __init__(self, path: str, study: Callable[[], Study]) -> None:
        self._path, self._study = path, study
        self._sent_s = -HEARTBEAT_S

    def open(self) -> None:
        """Send a heartbeat, at most one in `HEARTBEAT_S`."""
        if time.monotonic() - self._sent_s >= HEARTBEAT_S:
            self._post({"op": "heartbeat", "facts": study_facts(self._study())})

    def send(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None = None) -> None:
        """Send one row of the outbox; the service takes each sequence number once."""
        body: dict[str, Any] = {"op": op, "seq": payload["seq"], "facts": study_facts(study, answer)}
        if op == "trial_ended":
            ended = [one for one in study.trials if one.number == payload["number"]]
            body["trial"] = trial_facts(study, ended[0]) if ended else {"number": payload["number"]}
        self._post(body)

    def links(self) -> dict[str, str]:
        return {}

    def _post(self, body: Mapping[str, Any]) -> None:
        report = report_of(self._path)
        data = json.dumps(redact_data({"protocol": PROTOCOL, "epoch": report.epoch, **body})).encode()
        request = urllib.request.Request(  # noqa: S310 (the address is the service's own)
            f"{report.url}/facts",
            data=data,
            headers={"authorization": f"Bearer {report.token}", "content-type": "application/json"},
        )
        try:
            context = ssl.create_default_context()
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context):  # noqa: S310 (the address is the service's own)
                pass
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(2000).decode(errors="replace")
            message = f"the service does not take a record: {error.code} {text[:300]}"
            raise (Refused if error.code in (409, 413, 422) else BackendError)(message) from error
        except (OSError, ValueError) as error:
            raise BackendError(f"the service cannot be reached: {error}") from error
        self._sent_s = time.monotonic()


def report_path() -> str:
    """Return the report file from the service; empty for a search without one."""
    return os.environ.get(REPORT, "")
