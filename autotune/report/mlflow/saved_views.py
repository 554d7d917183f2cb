"""Saved views of MLflow's UI: columns, their order, sorting and charts. Pure.

A view is a tag of the experiment. Its format is internal to MLflow and undocumented: read in the bundles of
the UI of 3.10 to 3.18. In a browser, 3.15.2, 3.16.1, 3.17.2 and 3.18.0 draw it; 3.10.0, 3.11.1, 3.12.0,
3.13.0 and 3.14.0 stay empty. Writes are guarded; nothing depends on a view.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zlib
from typing import TYPE_CHECKING, Any

from autotune.model.config import in_order
from autotune.report.mlflow.run_content import rate_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

TAG = "mlflow.sharedViewState."
"""Prefix of the tag that holds a view."""
LONGEST_TAG = 20_000
"""Characters that MLflow accepts for a tag of an experiment (`mlflow/utils/validation.py`)."""
TESTED = ((3, 15), (3, 18))
"""First and last version of MLflow that gets a view.

Earlier versions read the format but draw no runs with the view: an empty page is worse than none.
"""

_KNOB_COLUMNS = 12
_KNOB_AXES = 3
"""Most axes whose names do not overlap at the width of MLflow's chart."""
_COMPARED = 100
_NAME = "attributes.`Run Name`"
_WIDTHS = {
    _NAME: 300,
    "runDateAndNestInfo": 125,
    "speedup": 90,
    "speedup_ci_low": 125,
    "speedup_ci_high": 125,
    "single_run_speedup": 145,
    "peak_mem_gib": 120,
    "label": 170,
    "reason": 300,
}
"""Width in pixels of columns whose content does not fit the default of 100; MLflow before 3.16 ignores it."""
_THROUGHPUT_WIDTH = 170


def is_tested(version: str) -> bool:
    """Return whether this version of MLflow may get a view."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and TESTED[0] <= (int(found[1]), int(found[2])) <= TESTED[1]


def view_id(study: Study) -> str:
    """Return the identifier of a study's view in links."""
    return f"autotune-{study.spec.study_id}"


def searches_id(script: str) -> str:
    """Return the identifier of the view of all searches of a script, side by side.

    Args:
        script: Result of `autotune.report.mlflow.run_content.script_id`.
    """
    return f"autotune-searches-{script}"


def view_tag(name: str, state: Mapping[str, object], now_ms: int) -> str:
    """Return the value of an experiment tag that MLflow's UI shows as a saved view."""
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": now_ms, "updatedAt": now_ms, "state": "deflate;" + packed})


def decode_view(tag: str) -> dict[str, Any]:
    """Return the state in such a tag.

    Raises:
        ValueError: The tag holds no state.
    """
    try:
        packed = str(json.loads(tag)["state"])
        text = zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"), validate=True))
        return dict(json.loads(text))
    except (KeyError, TypeError, zlib.error) as error:
        message = "not a saved view"
        raise ValueError(message) from error


def view_state(study: Study, answer: Answer | None = None) -> dict[str, Any]:
    """Return a view of a study's trials: knobs as columns, the fastest confirmed first, and four charts.

    During the search nothing is confirmed, so trials are sorted by single runs. Stable: the same study gives
    the same view.
    """
    changed = sorted({knob for trial in study.trials for knob in trial.config})
    knobs = [knob for knob, _ in in_order(dict.fromkeys(changed, 0))]
    unit = next((t.measurement.throughput.unit for t in study.finished() if t.measurement), "samples/s")
    rate = rate_name(unit)
    speedup = "speedup" if study.stopped else "single_run_speedup"
    charts: list[dict[str, Any]] = [
        _scatter("peak_mem_gib", rate),
        _bars(speedup),
        _curve("best_so_far_speedup"),
    ]
    # The answer's changes are the most informative; the names of more axes would overlap.
    changes = answer.best.config if answer is not None else {}
    if axes := _axes(study, sorted(knobs, key=lambda knob: knob not in changes)):
        charts.insert(1, _parallel(axes, "single_run_speedup"))
    columns = [
        *map(
            _metric,
            ("speedup", "speedup_ci_low", "speedup_ci_high", "single_run_speedup", rate, "peak_mem_gib"),
        ),
        _tag("loss"),
        *(f"params.`{knob}`" for knob in knobs[:_KNOB_COLUMNS]),
        *map(_tag, ("status", "stage", "reason")),
    ]
    mine = f"tags.`autotune.study_id` = '{study.spec.study_id}'"
    ids = f"autotune:{study.spec.study_id}"
    return _state(mine, speedup, columns, charts, ids=ids, section="autotune: what to pick and why")


def searches_state(experiment: str, script: str, rate: str, differing: Sequence[str]) -> dict[str, Any]:
    """Return a view of all searches of a script, one row each, with charts that overlay them.

    Args:
        experiment: Name that is part of the view's ids, so that writing it again changes nothing.
        script: Script of the searches; another one of the same name may be in the same experiment.
        rate: Metric of the throughput.
        differing: Parameters that differ between the searches.
    """
    figures = ("speedup", "speedup_ci_low", "speedup_ci_high", "safe_speedup", rate, f"baseline_{rate}")
    columns = [
        *map(_metric, (*figures, "peak_mem_gib", "trials", "trials_failed", "search_seconds")),
        *(f"params.`{name}`" for name in differing[:_KNOB_COLUMNS]),
        *map(_tag, ("label", "status")),
    ]
    charts = [_bars("speedup"), _curve("best_so_far_speedup"), _scatter("peak_mem_gib", rate)]
    searches = f"tags.`autotune.role` = 'study' and tags.`autotune.script` = '{script}'"
    ids = f"autotune:{experiment}:{script}:searches"
    return _state(searches, "speedup", columns, charts, ids=ids, section="autotune: searches side by side")


def _state(
    condition: str,
    order: str,
    columns: Sequence[str],
    charts: Sequence[dict[str, Any]],
    *,
    ids: str,
    section: str,
) -> dict[str, Any]:
    part = _stable_id(ids, "section")
    common = {
        "metricSectionId": part,
        "runsCountToCompare": _COMPARED,
        "deleted": False,
        "isGenerated": False,
    }
    place = {"name": section, "display": True, "isReordered": True, "deleted": False, "isGenerated": False}
    return {
        "searchFilter": condition,
        "orderByKey": _metric(order),
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
        "columnOrder": [_NAME, "runDateAndNestInfo", *columns],
        "columnWidths": _widths([_NAME, "runDateAndNestInfo", *columns]),
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [{"uuid": part, **place}],
        "compareRunCharts": [{"uuid": _stable_id(ids, str(c["type"])), **common, **c} for c in charts],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def _scatter(x: str, y: str) -> dict[str, Any]:
    axis = {"type": "METRIC", "index": 0}
    return {"type": "SCATTER", "xaxis": {**axis, "key": x}, "yaxis": {**axis, "key": y}}


def _axes(study: Study, knobs: Sequence[str]) -> list[str]:
    """Return the knobs with a value in every run: the chart leaves out runs without a value on an axis."""
    run = study.facts.run if study.facts is not None else None
    own = run.values if run is not None else {}
    return [knob for knob in knobs if knob in own][:_KNOB_AXES]


def _widths(columns: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for column in columns:
        name = column.split("`")[1].removeprefix("autotune.") if column != _NAME and "`" in column else column
        wide = _THROUGHPUT_WIDTH if "throughput" in name else _WIDTHS.get(name)
        if wide is not None:
            found[column] = wide
    return found


def _parallel(axes: Sequence[str], metric: str) -> dict[str, Any]:
    return {
        "type": "PARALLEL",
        "selectedParams": list(axes),
        "selectedMetrics": [metric],
        "showAllRuns": False,
    }


def _bars(metric: str) -> dict[str, Any]:
    return {"type": "BAR", "metricKey": metric}


def _curve(metric: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "lineSmoothness": 0,
        "scaleType": "linear",
    }


def _metric(name: str) -> str:
    return f"metrics.`{name}`"


def _tag(name: str) -> str:
    return f"tags.`autotune.{name}`"


def _stable_id(ids: str, part: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ids}:{part}"))
