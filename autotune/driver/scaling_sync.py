"""The figures of `autotune scale` as one run in MLflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autotune.driver.sync import address_of, mlflow_sink
from autotune.report.html.scaling_page import scaling_html
from autotune.report.view.scaling_view import as_object, sentences
from autotune.report.view.summary import user_command

if TYPE_CHECKING:
    from autotune.driver.scaling import Scaled

ROLE = "scaling"
"""Tag of the run, which is none of a search's."""


def send_scaling(found: Scaled, tracking_uri: str = "") -> str:
    """Write the run, with the number of processes as the step of each figure, and return its address.

    Args:
        found: What was measured.
        tracking_uri: Of the store; empty for the default one.

    Raises:
        TrackerUnavailable: The store does not answer.
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
