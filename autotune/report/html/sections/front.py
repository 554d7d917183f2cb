"""Speed against memory: every measured configuration, and the Pareto front."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.report.html import svg
from autotune.report.html.markup import Column, Markup, Sorted, heading, html, table, tag
from autotune.report.html.scatter import Dot, scatter, staircase
from autotune.report.view import sanitize, summary
from autotune.report.view.picks import shown_picks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.answer.answer import Answer
    from autotune.model.config import Config
    from autotune.report.view.study_view import Tried, View

_LOSS_SHAPE: Final = {"pass": "circle", "unclear": "diamond", "fail": "cross"}


def front_section(view: View) -> Markup:
    """Return the chart with its front, and the front as a table; empty without a measurement."""
    answer = view.answer
    if answer is None or not view.tried:
        return Markup()
    unit = answer.baseline_throughput.unit
    placed = [t for t in view.tried if t.peak_bytes is not None]
    parts = [
        heading(
            "front",
            "Speed against memory",
            "Every measured configuration; higher and further left is better. The stair joins "
            "configurations that no other one beats by more than noise.",
        )
    ]
    if len(placed) > 1:
        names = {pick.config: name for name, pick in reversed(shown_picks(answer).items())}
        joined = {m.config: m.throughput for m in answer.front}
        # A member has the position of the table, without its disturbed runs.
        placed = [replace(t, rate=joined.get(t.config, t.rate)) for t in placed]
        dots = [_front_dot(view, t, names, set(joined)) for t in placed]
        stair = staircase(
            (m.peak_bytes / summary.GIB, m.throughput) for m in answer.front if m.peak_bytes is not None
        )
        bound = view.study.spec.max_memory_bytes
        text = f"{len(dots)} configurations; {len(joined)} of them on the front."
        parts.append(
            svg.responsive(
                "pareto",
                lambda width, name: scatter(
                    dots,
                    stair,
                    width,
                    name,
                    title="Throughput against peak memory of every configuration",
                    text=text,
                    x_title="peak memory, GiB",
                    y_title=f"throughput, {unit}",
                    bound=None if bound is None else bound / summary.GIB,
                ),
            )
        )
        parts.append(
            svg.legend(
                ("square", "script", "your script"),
                ("circle", "best", "a pick, or confirmed: loss holds"),
                ("diamond", "other", "loss not judged: single runs only"),
                ("cross", "bad", "loss worse, or it diverges"),
                ("line", "front", "front"),
            )
        )
    else:
        reason = "Only one configuration was measured." if placed else "No trial reported its peak memory."
        parts.append(tag("p", reason))
    parts.append(_front_table(view, answer))
    return html(*parts)


def _front_dot(view: View, tried: Tried, names: Mapping[Config, str], joined: set[Config]) -> Dot:
    name = "script" if tried.config.is_baseline else names.get(tried.config, "")
    label = {"": "", "script": "your script"}.get(name, name)
    base = next((t.rate for t in view.tried if t.config.is_baseline), 0.0)
    ratio = f"{tried.rate / base:.2f}x, " if base and not tried.config.is_baseline else ""
    how = "confirmed" if tried.is_confirmed else summary.plural(tried.runs, "single run")
    tip = (
        f"t{tried.trial:02d} {sanitize.config_text(tried.config)}: {ratio}{summary.number_text(tried.rate)}, "
        f"{summary.bytes_text(tried.peak_bytes)}, {how}, loss {tried.loss}"
    )
    shape = "square" if tried.config.is_baseline else _LOSS_SHAPE[tried.loss]
    plain = "bad" if tried.loss == "fail" else "best" if tried.is_confirmed else "other"
    on_front = tried.config in joined
    class_ = name or plain + (" hollow" if on_front and plain == "other" else "")
    return Dot(
        x=(tried.peak_bytes or 0) / summary.GIB,
        y=tried.rate,
        class_=class_,
        shape=shape,
        tip=tip,
        label=label,
        rank=2 if name else 1 if on_front else 0,
        size=6.5 if name else 4.6 if on_front else 3.6,
    )


def _front_table(view: View, answer: Answer) -> Markup:
    if not answer.front:
        return Markup()
    named = summary.picks_of(answer)
    confirmed = {t.config for t in view.tried if t.is_confirmed}
    rows = [
        (
            Sorted(f"t{m.trial:02d}", m.trial),
            html(
                sanitize.config_text(m.config),
                ", measured beside others" if m.is_disturbed else "",
                *(html(" ", tag("span", n, class_=f"tag {n}")) for n in named.get(m.trial, ())),
            ),
            Sorted(f"{summary.number_text(m.throughput)}", m.throughput),
            Sorted(summary.bytes_text(m.peak_bytes), m.peak_bytes or ""),
            Sorted("" if m.loss is None else summary.number_text(m.loss), "" if m.loss is None else m.loss),
            "yes" if m.config in confirmed or m.config.is_baseline else "no, single runs",
        )
        for m in answer.front
    ]
    columns = (
        Column(title="Trial"),
        Column(title="Configuration", is_wide=True),
        Column(title=f"Throughput, {answer.baseline_throughput.unit}", is_number=True),
        Column(title="Peak memory", is_number=True),
        Column(title="Loss", is_number=True),
        Column(title="Confirmed"),
    )
    listed = table(columns, rows, caption="The front, fastest first", sorts=True)
    return tag("details", tag("summary", f"The front as a table ({len(rows)})"), listed)
