"""Files of a study in MLflow: offline tables and pictures, and logs of failed trials.

Pure; MLflow is not imported.
"""

from __future__ import annotations

import csv
import io
import json
from html import escape
from typing import TYPE_CHECKING, Any

from autotune.model.config import in_order
from autotune.model.wire import to_wire
from autotune.report.mlflow.run_content import gib, log_tail, param_text, resolved
from autotune.report.view import summary

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study

FAILED_LOGS = 20
"""Number of failed trials whose logs are stored with the study's run."""


def trials_json(study: Study) -> str:
    """Return every trial with all its data, as one JSON document."""
    rows: list[dict[str, Any]] = []
    for trial in study.trials:
        ratio = summary.speedup_of(study, trial)
        rows.append(
            {
                "name": summary.trial_name(trial),
                "speedup": None if ratio is None else to_wire(ratio),
                "trial": to_wire(trial),
            }
        )
    return json.dumps({"study": study.spec.study_id, "trials": rows}, indent=1, allow_nan=False)


def front_csv(study: Study, answer: Answer) -> str:
    """Return the Pareto front as CSV, fastest first; MLflow shows such a file as a table."""
    knobs = [k for k, _ in in_order({k: 0 for m in answer.front for k in m.config})]
    picks = summary.picks_of(answer)
    unit = answer.baseline_throughput.unit
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "pick", f"throughput {unit}", "peak memory GiB", "loss", *knobs])
    for member in answer.front:
        values = resolved(study, member.config)
        memory = gib(member.peak_bytes)
        rows.writerow(
            [
                f"t{member.trial:02d}",
                " ".join(picks.get(member.trial, ())) or ("your script" if member.config.is_baseline else ""),
                summary.significant(member.throughput),
                "" if memory is None else summary.significant(memory),
                "" if member.loss is None else summary.significant(member.loss),
                *(param_text(values[knob]) if knob in values else "" for knob in knobs),
            ]
        )
    return text.getvalue()


def failed_logs(study: Study) -> dict[str, str]:
    """Map file names to the last output of the first failed trials."""
    failed = [t for t in study.finished() if t.failure is not None and log_tail(t)]
    return {
        f"failed/t{t.number:02d}-{t.failure.kind.label if t.failure else ''}.log": log_tail(t)
        for t in failed[:FAILED_LOGS]
    }


def pareto_svg(study: Study, answer: Answer) -> str:
    """Draw throughput against peak memory of every measured trial, with the front and the picks."""
    points = [
        (t.measurement.memory.peak_bytes / summary.GIB, t.measurement.throughput.value, t)
        for t in study.finished()
        if t.measurement is not None and t.measurement.memory.peak_bytes is not None
    ]
    width, height, left, right, top, bottom = 720, 440, 80, 30, 40, 60
    unit = answer.baseline_throughput.unit
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="22" font-size="15">'
        f"{escape(summary.headline(study, answer)[:100])}</text>"
    )
    if not points:
        return f'{head}<text x="{left}" y="120">No trial reported its peak memory.</text></svg>\n'
    most_x = 1.1 * max(p[0] for p in points) or 1.0
    most_y = 1.15 * max(p[1] for p in points) or 1.0

    def place(gib: float, rate: float) -> tuple[float, float]:
        x = left + (width - left - right) * gib / most_x
        return round(x, 1), round(height - bottom - (height - top - bottom) * rate / most_y, 1)

    parts = [head]
    floor, number = height - bottom, summary.number_text
    for i in range(6):
        gib, rate = most_x * i / 5, most_y * i / 5
        x, y = place(gib, rate)
        parts += [
            f'<path d="M{x} {floor}V{top}M{left} {y}H{width - right}" stroke="#ddd" fill="none"/>',
            f'<text x="{x}" y="{floor + 18}" text-anchor="middle">{number(gib, 3)}</text>',
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{number(rate, 3)}</text>',
        ]
    middle_x, middle_y = (left + width - right) / 2, -height / 2
    parts += [
        f'<text x="{middle_x}" y="{height - 14}" text-anchor="middle">peak memory, GiB</text>',
        f'<text transform="rotate(-90)" x="{middle_y}" y="18" text-anchor="middle">',
        f"throughput, {escape(unit)}</text>",
    ]
    front = {m.trial for m in answer.front}
    line = sorted(place(gib, rate) for gib, rate, t in points if t.number in front)
    if len(line) > 1:
        path = " ".join(f"{x},{y}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#0b7" stroke-dasharray="4 3"/>')
    picks = summary.picks_of(answer)
    for gib, rate, trial in points:
        x, y = place(gib, rate)
        color = "#c33" if trial.config.is_baseline else "#0b7" if trial.number in front else "#999"
        names = "+".join(picks.get(trial.number, ())) or ("your script" if trial.number == 0 else "")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{6 if names else 4}" fill="{color}">'
            f"<title>{escape(summary.trial_name(trial))}</title></circle>"
        )
        if names:
            parts.append(f'<text x="{x + 9}" y="{y - 6}" font-weight="bold">{escape(names)}</text>')
    return "".join(parts) + "</svg>\n"
