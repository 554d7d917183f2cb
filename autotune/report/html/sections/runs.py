"""Steadiness: every run of the script and of the picks, and their step times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.model.config import Config
from autotune.model.trial import Stage
from autotune.report.html import figures, svg
from autotune.report.html.markup import Markup, heading, html, tag
from autotune.report.view import sanitize, summary
from autotune.report.view.picks import shown_picks
from autotune.report.view.study_view import runs_of, step_quantiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.model.trial import Trial
    from autotune.report.view.study_view import View

_MOST_RUNS: Final = 14
_BASE: Final = Config()


def runs_section(view: View) -> Markup:
    """Return runs and step times as charts; empty without a measured run."""
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    chosen = [("script", _BASE), *((n, p.config) for n, p in shown_picks(answer).items())]
    unit = answer.baseline_throughput.unit
    groups: list[figures.Group] = []
    rows: list[figures.Box] = []
    for name, config in chosen:
        runs = runs_of(study, config)
        kept = [t for t in runs if t.stage is Stage.CONFIRM][-_MOST_RUNS:]
        kept = [t for t in runs if t.stage is not Stage.CONFIRM][: max(3, _MOST_RUNS - len(kept))] + kept
        label = "your script" if name == "script" else f"{name}: {sanitize.config_text(config)}"
        groups.append(
            figures.Group(
                label=label,
                class_=name,
                runs=[_run(t) for t in kept],
                note=summary.plural(len(runs), "run"),
            )
        )
        if (quantiles := step_quantiles(study, config)) is not None:
            q = tuple(1000 * value for value in quantiles)
            rows.append(figures.Box(label=label, class_=name, quantiles=(q[0], q[1], q[2], q[3], q[4])))
    if not any(g.runs for g in groups):
        return Markup()
    counts = "; ".join(f"{g.label}: {g.note}" for g in groups)
    return html(
        heading(
            "runs",
            "How steady it is",
            "Each run as a point with the interval within the run; filled ones are of pairs, hollow ones "
            "single runs of the search. The bar is their mean.",
        ),
        svg.responsive(
            "strips",
            lambda width, name: figures.strips(
                groups,
                width,
                name,
                title="Throughput of every run of your script and of the picks",
                text=f"{counts}.",
                axis=f"throughput, {unit}",
            ),
        ),
        _step_times(rows),
    )


def _step_times(rows: Sequence[figures.Box]) -> Markup:
    if not rows:
        return Markup()
    medians = "; ".join(f"{r.label}: median {r.quantiles[2]:.4g} ms" for r in rows)
    return html(
        tag("h3", "Step times"),
        tag("p", "The middle half of all steps as a box, 5 to 95 % as a line.", class_="soft"),
        svg.responsive(
            "steps",
            lambda width, name: figures.boxes(
                rows,
                width,
                name,
                title="Distribution of step times",
                text=f"{medians}.",
                axis="milliseconds per optimizer step",
            ),
        ),
    )


def _run(trial: Trial) -> figures.RunPoint:
    assert trial.measurement is not None
    rate = trial.measurement.throughput
    tip = f"t{trial.number:02d}, {trial.stage.value}: {summary.number_text(rate.value)} {rate.unit}"
    return figures.RunPoint(
        value=rate.value,
        low=rate.low,
        high=rate.high,
        is_fresh_pair=trial.stage is Stage.CONFIRM,
        tip=tip,
    )
