"""Bottleneck of the script, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.answer.bottleneck import NAMES, shown
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, bullets, heading, html, tag
from autotune.report.view.bottleneck_text import bottlenecks
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from autotune.report.view.study_view import View


def bottleneck_section(view: View) -> Markup:
    """Return where the time of a step goes, with the evidence; empty if unknown."""
    answer = view.answer
    if answer is None:
        return Markup()
    found = bottlenecks(view.study, answer)
    colours = {
        "input": "fastest",
        "transfer": "ablate",
        "compute": "best",
        "memory": "safe",
        "overhead": "refine",
        "sync": "bad",
        "communication": "confirm",
        # Without a probe, shows whether device or loader waits for the other.
        "device": "best",
        "host": "refine",
    }
    rows: list[figures.Share] = []
    for name, verdict in found.items():
        parts = [(colours[k], k, s) for k, s in verdict.shares.items() if k in colours and s > 0]
        rest = 1.0 - sum(share for _, _, share in parts)
        if rest > 0.005:
            parts.append(("other faint", "not known", rest))
        rows.append(
            figures.Share(
                label="Your script" if name == "script" else "With best",
                parts=tuple(parts),
                note=NAMES.get(verdict.kind, verdict.kind),
            )
        )
    if not any(v.shares for v in found.values()):
        return Markup()
    text = "; ".join(f"{r.label}: {r.note}" for r in rows)
    chart = svg.responsive(
        "bottleneck",
        lambda width, name: figures.shares(
            rows, width, name, title="Where the time of a step goes, before and after", text=f"{text}."
        ),
    )
    used = {words for row in rows for _, words, _ in row.parts}
    key = svg.legend(
        *(("bar", colours[k], NAMES[k]) for k in colours if k in used),
        *((("bar", "other faint", "not taken apart"),) if "not known" in used else ()),
    )
    details = [
        html(
            tag("h3", "Your script" if name == "script" else "With best", f": {NAMES.get(v.kind, v.kind)}"),
            bullets(clean(view.study, r) for r in shown(v, most=6)),
        )
        for name, v in found.items()
    ]
    return html(heading("bottleneck", "What limits it, before and after"), chart, key, *details)
