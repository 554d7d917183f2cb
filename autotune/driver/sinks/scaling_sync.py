"""Scaling figures of `autotune scale` as one run in MLflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autotune.driver.scaling import read_scaled
from autotune.driver.sinks.sync import address_of, mlflow_sink
from autotune.model.study import SCALE
from autotune.report.html.scaling_page import scaling_html
from autotune.report.view.scaling_view import as_object, sentences
from autotune.report.view.summary import user_command
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.paths import JOURNAL_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.driver.scaling import Scaled

ROLE = "scaling"
"""Tag of the run, which distinguishes it from those of a search."""


def send_if_scaling(path: Path, tracking_uri: str = "") -> bool:
    """Send a study's figures if `autotune scale` measured it; return whether it did.

    Raises:
        StoreError: The study cannot be read.
        TrackerUnavailable: The store does not respond.
    """
    with Journal.read(path / JOURNAL_FILE) as journal:
        is_scaling = fold(journal.entries()).spec.purpose == SCALE
    if is_scaling:
        send_scaling(read_scaled(path), tracking_uri)
    return is_scaling


def send_scaling(found: Scaled, tracking_uri: str = "") -> str:
    """Write the run, with the number of processes as the step of each figure, and return its address.

    Args:
        found: Result of the measurement.
        tracking_uri: Address of the store; empty for the default one.

    Raises:
        TrackerUnavailable: The store does not respond.
    """
    study, scaling = found.study, found.scaling
    metrics: list[tuple[str, float | None, int]] = []
    for point in scaling.points:
        for name in ("throughput", "efficiency", "cost_per_million_samples"):
            estimate = getattr(point, "cost" if name.startswith("cost") else name)
            if estimate is not None:
                metrics.append((name, estimate.value, point.processes))
                metrics.append((f"{name}_low", estimate.low, point.processes))
                metrics.append((f"{name}_high", estimate.high, point.processes))
        metrics.append(("communication_frac", point.communication_frac, point.processes))
        metrics.append(("peak_bytes", point.peak_bytes, point.processes))
    if scaling.knee is not None:
        metrics.append(("knee", scaling.knee, 0))
    command = user_command(study)
    sink = mlflow_sink(address_of(study, tracking_uri), study.spec.experiment)
    return sink.log_run(
        study,
        role=ROLE,
        name=study.spec.label,
        metrics=metrics,
        tags={
            "mlflow.note.content": "".join(f"- {text}\n" for text in sentences(scaling)),
            "mlflow.source.name": command,
            "mlflow.source.type": "LOCAL",
            "autotune.unit": scaling.unit,
        },
        artifacts={
            "report.html": scaling_html(study, scaling, command),
            "scaling.json": json.dumps(as_object(scaling), indent=2, allow_nan=False) + "\n",
        },
    )
