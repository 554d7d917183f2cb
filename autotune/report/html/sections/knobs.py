"""Effects of the knobs: changes, contributions, and interactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.answer.contributions import contributions
from autotune.compare.value_effects import best_of_each
from autotune.model.config import Config, in_order
from autotune.report.html import figures, svg
from autotune.report.html.markup import Column, Markup, bullets, heading, html, table, tag
from autotune.report.view import contribution_text, sanitize, summary
from autotune.report.view.picks import shown_picks
from autotune.report.view.sanitize import clean

if TYPE_CHECKING:
    from autotune.answer.contributions import Contribution, Contributions
    from autotune.model.measurement import Estimate
    from autotune.report.view.study_view import View

_MOST_EFFECTS: Final = 14
_BASE: Final = Config()


def knobs_section(view: View) -> Markup:
    """Return changed, unchanged and untested knobs; empty without an answer."""
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    own = summary.own_values(study)
    shown_in = shown_picks(answer)
    changed = [k for k, _ in in_order({k: v for p in shown_in.values() for k, v in p.config.items()})]
    kept = [
        k
        for k, _ in in_order(own)
        if k not in changed and (study.space is None or k in study.space.dimensions)
    ]
    found = contributions(study, answer.best)
    rows = [
        (
            knob,
            sanitize.value_text(own.get(knob)) or "not read",
            *(
                tag("strong", sanitize.value_text(pick.config[knob])) if knob in pick.config else "unchanged"
                for pick in shown_in.values()
            ),
            _gain_cell(found, knob),
        )
        for knob in changed
    ]
    columns = (
        Column(title="Knob"),
        Column(title="Your script"),
        *(Column(title=name) for name in shown_in),
        Column(title="Brings in best"),
    )
    parts = [
        heading(
            "knobs",
            "What each knob does",
            "The contribution of a knob to the winner was measured by removing it, where the budget "
            "allowed that. All other figures are estimates from single runs, and marked.",
        )
    ]
    if rows and shown_in:
        parts.append(table(columns, rows, caption="What is changed"))
    if kept:
        stays = ", ".join(f"{knob} {sanitize.value_text(own[knob])}" for knob in kept)
        parts.append(tag("p", f"As in your script: {stays}.", class_="small soft"))
    parts += [_effects_figure(view, found), _interactions(view)]
    if study.refusals:
        refused = [
            html(tag("code", knob), f": {clean(study, reason)}") for knob, reason in study.refusals.items()
        ]
        title = f"Not varied: {summary.plural(len(refused), 'knob')}, each with the reason"
        parts.append(tag("details", tag("summary", title), bullets(refused)))
    return html(*parts) if len(parts) > 1 and any(parts[1:]) else Markup()


def _gain_cell(found: Contributions, knob: str) -> str:
    text, part = contribution_text.knob_text(found, knob), found.of(knob)
    return text if part is None else f"{text} {contribution_text.interval_text(part)}, {_rests_on(part)}"


def _rests_on(part: Contribution) -> str:
    return summary.plural(part.ratio.n, "pair") if part.source == "pairs" else "estimated"


def _effects_figure(view: View, found: Contributions) -> Markup:
    best = view.answer.best.config if view.answer is not None else _BASE
    rows = [
        figures.Ratio(
            label=" with ".join(f"{knob} {sanitize.value_text(best[knob])}" for knob in part.knobs),
            value=part.ratio.value,
            low=part.ratio.low,
            high=part.ratio.high,
            class_="best",
            is_hollow=part.source == "estimated",
            note=_rests_on(part),
        )
        for part in found.parts
    ]
    room = max(3, _MOST_EFFECTS - len(rows))
    # Contributions of the pick's own changes are above, or not separated.
    others = [e for e in best_of_each(view.effects) if best.get(e.knob) != e.value]
    rows += [
        figures.Ratio(
            label=f"{e.knob} {sanitize.value_text(e.value)}",
            value=e.ratio.value,
            low=e.ratio.low,
            high=e.ratio.high,
            class_="other",
            shape="diamond",
            is_hollow=True,
            note=f"estimated, {summary.plural(e.configs, 'config')}",
        )
        for e in others[:room]
    ]
    if not rows:
        return Markup()
    text = "; ".join(f"{r.label} {r.value:.2f}x ({r.note})" for r in rows[:8])
    chart = svg.responsive(
        "effects",
        lambda width, name: figures.ratios(
            rows,
            width,
            name,
            title="Speed with a knob, relative to the speed without it",
            text=f"{text}.",
            axis="speed relative to the speed without it",
        ),
    )
    key = svg.legend(
        ("circle", "best", "measured: taken out of the winner, in pairs of fresh runs"),
        ("circle", "best hollow", "within the winner, estimated from single runs; not confirmed"),
        ("diamond", "other hollow", "over all single runs, the knob's best value; estimated, not confirmed"),
    )
    return html(tag("h3", "Knob by knob"), chart, key)


def _interactions(view: View) -> Markup:
    found = view.effects.interactions[:8]
    if not found:
        return Markup()
    rows = [
        (
            f"{e.knobs[0]} with {e.knobs[1]}",
            _gain(e.ratio),
            f"gain {'less' if e.ratio.value < 1 else 'more'} together than separately",
            summary.plural(e.configs, "configuration"),
        )
        for e in found
    ]
    columns = (
        Column(title="Knobs"),
        Column(title="Joint gain over the product of their own", is_number=True),
        Column(title="In words"),
        Column(title="Estimated from"),
    )
    return html(
        tag("h3", "Knobs that interact"),
        table(columns, rows, caption="Estimated from single runs; not confirmed"),
    )


def _gain(ratio: Estimate) -> str:
    value, low, high = (100 * (x - 1) for x in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.0f} % [{low:+.0f}, {high:+.0f}]"
