"""Outbox: messages to external stores, written in the same transaction as their event.

A row names an event, not its presentation: the sender derives texts and figures from the study at the time of
sending. So late and repeated rows give the same result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MLFLOW = "mlflow"
SERVICE = "service"
REPORT: Final = "AUTOTUNE_SERVICE_REPORT"
"""Variable with the file that names the service which a search reports to (`driver.sinks.service_sink`)."""
PROTOCOL: Final = 1
"""Version of what drivers and clients send to a service, which refuses a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """One message to be sent.

    Args:
        sink: Receiver.
        op: ``study_began``, ``trial_ended`` or ``study_ended``.
        key: Unique per sink and study; a second row with the key is not written.
        payload: JSON-serializable.
        seq: Its number in the journal, 0 before it was written; the argument of `Journal.ack`.
        wall_s: Time of its event, seconds since the epoch.
    """

    sink: str
    op: str
    key: str
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seq: int = 0
    wall_s: float = 0.0


def rows_for(kind: str, data: Mapping[str, Any], **extra: Any) -> tuple[OutboxRow, ...]:
    """Return the rows of an event; empty for events without external use.

    Args:
        kind: Kind of the event.
        data: Data of the event.
        extra: Added to the payload: ``best_yaml`` (the text of the file) or ``best_yaml_path``
            with ``stopped``.
    """
    row = _row_for(kind, data, extra)
    if row is None:
        return ()
    return (row, replace(row, sink=SERVICE)) if os.environ.get(REPORT) else (row,)


def _row_for(kind: str, data: Mapping[str, Any], extra: Mapping[str, Any]) -> OutboxRow | None:
    if kind == "opened":
        return OutboxRow(sink=MLFLOW, op="study_began", key=f"study_began/{data['wall_s']!r}", payload=extra)
    if kind == "finished":
        place = {"number": data["number"], "attempt": data["attempt"]}
        key = f"trial_ended/{data['number']}/{data['attempt']}"
        return OutboxRow(sink=MLFLOW, op="trial_ended", key=key, payload={**place, **extra})
    if kind == "stopped":
        key = f"study_ended/{data['why']}/{data['elapsed_s']!r}"
        return OutboxRow(sink=MLFLOW, op="study_ended", key=key, payload={"why": data["why"], **extra})
    return None
