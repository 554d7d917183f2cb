"""The report: one HTML file that needs nothing else, to be read, printed and sent.

The first screen answers: which configuration, how much faster with which interval, why, at what cost in
memory and loss, how to apply it, what failed. Everything below is evidence. The figures are those of
`autotune.report.data`, which also lie inside the page as JSON (``id="autotune-report"``).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from autotune.core.advice import bound_text
from autotune.core.bottleneck import NAMES, shown
from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.redact import redact
from autotune.core.trial import Family, Stage
from autotune.report import figures, summary
from autotune.report.data import (
    View,
    advice,
    bottlenecks,
    clean,
    commands,
    effect_word,
    environment,
    failed,
    headline,
    log_tail,
    picks,
    reasons,
    report_data,
    runs_of,
    shown_picks,
    step_quantiles,
    traces,
    wall_text,
)
from autotune.report.effects import best_of_each
from autotune.report.markup import (
    Column,
    Markup,
    Sorted,
    bullets,
    command,
    html,
    paragraphs,
    table,
    tag,
)
from autotune.report.style import SCRIPT, stylesheet
from autotune.report.why import energy_rows, pays_back_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.answer import Answer, Recommendation
    from autotune.core.config import Value
    from autotune.core.measurement import Estimate
    from autotune.core.study import Study
    from autotune.core.trial import Trial
    from autotune.report.data import PairedRuns, Tried
    from autotune.report.summary import Share
    from autotune.report.wishes import Repicked

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing is ever fetched, not even by a text that a script printed."""

_GIB: Final = 1024**3
_MOST_TAILS: Final = 30
_MOST_EFFECTS: Final = 14
_MOST_RUNS: Final = 14
_MOST_PAIRS: Final = 24
_TRACE_POINTS: Final = 160
_TRACES_EACH: Final = 3
_NAMES: Final = {"script": "Your script", "best": "best", "safe": "safe", "fastest": "fastest"}
_STAGES: Final = {
    "baseline": "your script as it is",
    "start": "first tries",
    "refine": "exploring",
    "sentinel": "your script again",
    "confirm": "confirming, in pairs",
    "ablate": "taking the winner apart",
    "why": "finding what holds it back",
}
_STAGE_CLASS: Final = {"sentinel": "baseline", "why": "other"}
_LOSS_SHAPE: Final = {"pass": "circle", "unclear": "diamond", "fail": "cross"}
_FEWEST_PAIRS: Final = 3
_BASE: Final = Config()


def report_html(
    study: Study, answer: Answer | None, *, repicked: Repicked | None = None, yaml: str = ""
) -> str:
    """The page.

    Args:
        study: As it is, running or ended.
        answer: Its answer, None where the script was never measured as it is.
        repicked: Picks made anew under other wishes; they take the place of the answer.
        yaml: The file that holds these picks, where one was written.
    """
    view = View.of(study, answer, repicked=repicked, yaml=yaml)
    sections = [
        ("picks", "Picks", _picks_section(view)),
        ("front", "Speed and memory", _front_section(view)),
        ("knobs", "Knobs", _knobs_section(view)),
        ("pairs", "Confirmation", _pairs_section(view)),
        ("bottleneck", "Bottleneck", _bottleneck_section(view)),
        ("advice", "Your code", _advice_section(view)),
        ("runs", "Steadiness", _runs_section(view)),
        ("loss", "Loss", _loss_section(view)),
        ("failures", "Failures", _failures_section(view)),
        ("time", "Time", _time_section(view)),
        ("trials", "Trials", _trials_section(view)),
        ("environment", "Environment", _environment_section(view)),
        ("commands", "Commands", _commands_section(view)),
    ]
    there = [(name, title, body) for name, title, body in sections if body]
    links = [tag("a", title, href=f"#{name}") for name, title, _ in there]
    body = html(
        tag("a", "To the answer", href="#answer", class_="skip"),
        tag("div", _top(view), class_="wrap"),
        tag("nav", bullets(links), class_="toc", aria_label="On this page"),
        tag(
            "main",
            _hero(view),
            *(tag("section", text, id=name, aria_labelledby=f"{name}-h") for name, _, text in there),
            class_="wrap",
        ),
        tag(
            "footer",
            f"Made by autotune {view.study.spec.version} from the study's journal alone. "
            "The figures lie in this page as JSON too, in the element autotune-report.",
            class_="wrap",
        ),
    )
    study = view.study
    head = html(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
        tag("title", f"{_script_name(study)}: {headline(view)}"),
        tag("style", Markup(stylesheet())),
    )
    data = Markup(f'<script type="application/json" id="autotune-report">{_json(view)}</script>')
    script = tag("script", Markup(SCRIPT))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{data}{script}</body></html>\n'


def _short_config(config: Mapping[str, Value]) -> str:
    return redact(summary.short_config(config), free=True)


def _long_config(config: Mapping[str, Value]) -> str:
    return redact(summary.long_config(config), free=True)


def _value_text(value: Value | None) -> str:
    return redact(summary.value_text(value), free=True)


def _script_name(study: Study) -> str:
    return clean(study, summary.script_name(study))


def _json(view: View) -> str:
    """Strict JSON that cannot end the element it stands in."""
    text = json.dumps(report_data(view), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _heading(name: str, title: str, lead: object = "") -> Markup:
    return html(tag("h2", title, id=f"{name}-h"), tag("p", lead, class_="soft") if lead else Markup())


# -- the first screen ---------------------------------------------------------------------------------


def _top(view: View) -> Markup:
    study = view.study
    spent = f"{summary.plural(len(study.told()), 'trial')} in {summary.duration_text(study.elapsed_s)}"
    parts = [
        tag("strong", _script_name(study)),
        clean(study, study.spec.label),
        wall_text(study.created),
        spent,
    ]
    return tag("header", *(tag("span", part) for part in parts), class_="top")


def _hero(view: View) -> Markup:
    study, answer = view.study, view.answer
    state = summary.status(study, answer)
    if answer is None or summary.failed_baseline(study) is not None:
        return _hero_without_answer(view, state)
    kind = "found" if answer.is_better else "none"
    repicked, best = view.repicked, answer.best
    wishes = (
        tag("div", *paragraphs_of(repicked.notes), _estimates_table(repicked), class_="note")
        if repicked is not None
        else Markup()
    )
    chart = _claims_figure(view, answer)
    body = html(
        tag("div", tag("div", _claim(view, answer)), chart, class_="verdict" if chart else None),
        wishes,
        _chips(view, best) if answer.is_better else Markup(),
        _why(view, answer),
        _apply(view, answer),
        _tiles(view, answer),
        _caveats(view, answer),
    )
    return tag("div", body, class_=f"hero {kind}", id="answer", tabindex="-1")


def _why(view: View, answer: Answer) -> Markup:
    """Why it is so; what the tiles say of loss and memory is said there alone."""
    told = [_sentence(view.study, text) for text in reasons(view.study, answer)]
    if not told:
        return Markup()
    return html(tag("p", "Why", class_="lead"), bullets(told, class_="why"))


def paragraphs_of(texts: tuple[str, ...]) -> list[Markup]:
    """Each text a paragraph."""
    return [tag("p", redact(text, free=True)) for text in texts]


def _hero_without_answer(view: View, state: str) -> Markup:
    study = view.study
    broken = summary.failed_baseline(study)
    parts = [tag("h1", headline(view, interval=False))]
    if broken is not None and broken.failure is not None:
        parts += [tag("p", clean(study, broken.failure.message)), _tail(view, broken, is_open=True)]
    elif state == "running":
        parts.append(tag("p", "The search goes on; the answer stands here when it is over."))
    else:
        parts.append(tag("p", f"It ended by: {study.stopped}."))
    given = commands(study, None, None, "")
    for name in ("go on", "search again"):
        if name in given:
            parts += [tag("p", f"{name.capitalize()}:", class_="lead"), command(given[name])]
            break
    kind = "broken" if broken is not None else "none"
    return tag("div", *parts, class_=f"hero {kind}", id="answer", tabindex="-1")


def _claim(view: View, answer: Answer) -> Markup:
    study, best = view.study, answer.best
    if not answer.is_better:
        return tag("h1", headline(view, interval=False))
    speedup = best.speedup
    heading = tag("h1", Markup(f"{speedup.value:.2f}x"), tag("span", Markup("&nbsp;faster"), class_="unit"))
    interval = (
        html(
            "between ",
            tag("b", f"{speedup.low:.2f}x"),
            " and ",
            tag("b", f"{speedup.high:.2f}x"),
            f" ({100 * speedup.confidence:.4g} % interval), in {summary.plural(speedup.n, 'pair')} of fresh "
            f"runs next to {_script_name(study)} as it is",
        )
        if speedup.n and math.isfinite(speedup.low) and math.isfinite(speedup.high)
        else html(f"in {summary.plural(speedup.n, 'pair')} of runs")
    )
    early = " The search was stopped early." if summary.is_early(study) else ""
    return html(heading, tag("p", interval, ".", early, class_="interval"))


def _claims_figure(view: View, answer: Answer) -> Markup:
    """Every claim with its interval on one axis, and the script against itself."""
    rows = [
        _ratio_row(name, pick.speedup, class_=name, note=_interval_text(pick.speedup))
        for name, pick in shown_picks(answer).items()
    ]
    if not rows:
        # What came closest is what a person wants to see where nothing was found.
        closest = sorted(view.compared.values(), key=lambda c: -c.speedup.value)[:3]
        rows = [
            _ratio_row(_short_config(c.config), c.speedup, class_="other", note=_interval_text(c.speedup))
            for c in closest
        ]
    if answer.identical is not None and rows:
        label = "your script against itself"
        row = _ratio_row(label, answer.identical, class_="script", note=_interval_text(answer.identical))
        rows.append(row)
    if not rows:
        return Markup()
    said = "; ".join(f"{row.label} {row.value:.2f}x" for row in rows)
    names = ("Speed-up of each pick with its interval", f"{said}. 1.00x is your script as it is.")

    def draw(width: float, name: str) -> Markup:
        # It has half of a wide page to itself.
        room = 0.58 * width if width >= figures.WIDE else width
        return figures.ratios(rows, room, name, title=names[0], text=names[1], axis="")

    return figures.responsive("claims", draw)


def _ratio_row(label: str, estimate: Estimate, *, class_: str, note: str = "") -> figures.Ratio:
    # Two pairs give an interval that says nothing.
    is_known = estimate.n >= _FEWEST_PAIRS and math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return figures.Ratio(
        label=label,
        value=estimate.value,
        low=estimate.low if is_known else None,
        high=estimate.high if is_known else None,
        class_=class_,
        shape="square" if class_ == "script" else "circle",
        note=note,
    )


def _interval_text(estimate: Estimate) -> str:
    return summary.control_text(estimate).split(",")[0] if estimate.n < 3 else summary.ratio_text(estimate)


def _chips(view: View, best: Recommendation) -> Markup:
    """The changes one by one: what it was, what it becomes, what that brings."""
    own, found = summary.own_values(view.study), summary.shares(view.study, best.config)
    items: list[Markup] = []
    for knob, value in summary.in_order(best.config):
        was = _value_text(own.get(knob))
        share = summary.share_of(found, knob)
        items.append(
            html(
                tag("span", knob, class_="knob"),
                tag("span", f"{was} → ", class_="was") if was else Markup(),
                tag("span", _value_text(value), class_="to"),
                tag("span", share[1], class_="gain")
                if share is not None and share[0].knobs[0] == knob and len(best.config) > 1
                else Markup(),
            )
        )
    return bullets(items, class_="chips")


def _tiles(view: View, answer: Answer) -> Markup:
    study, best = view.study, answer.best
    unit = answer.baseline_throughput.unit
    before = summary.number_text(answer.baseline_throughput.value)
    speed: object = f"{before} {unit}"
    memory: object = summary.bytes_text(answer.baseline_peak_bytes)
    memory_note = "your script's peak"
    total = study.memory_bytes
    of_all = f"; there are {summary.bytes_text(total)}" if total else ""
    if answer.is_better:
        speed = _change(before, f"{summary.number_text(best.throughput.value)} {unit}")
        memory = _change(summary.bytes_text(answer.baseline_peak_bytes), summary.bytes_text(best.peak_bytes))
        memory_note = "at peak" + of_all
        if best.peak_bytes is not None and answer.baseline_peak_bytes:
            memory_note = f"{best.peak_bytes / answer.baseline_peak_bytes:.2f} times yours at peak{of_all}"
    elif of_all:
        memory_note += of_all
    tiles: list[tuple[str, object, object]] = [
        ("Throughput", speed, "end to end, data loading included"),
        ("Peak memory", memory, memory_note),
    ]
    if answer.is_better:
        words = {"pass": "holds", "fail": "worse", "unclear": "not shown to hold"}
        loss = html(words[best.loss.verdict], tag("small", clean(study, summary.loss_sentence(best))))
        kept = "effective batch and learning rate stay as they are"
        tiles += [("Loss", loss, ""), ("Training", effect_word(best), kept)]
        if paid := pays_back_text(best):
            once, _, after = paid.partition("; ")
            tiles.append(("Compiling", once, after))
    count = summary.failed_count(study)
    kinds = ", ".join(f"{n} {label}" for label, n in answer.failures.items())
    what_failed = f"{summary.plural(count, 'trial')}, survived" if count else "nothing"
    tiles.append(("What failed", what_failed, kinds))
    spent = f"of {summary.duration_text(study.spec.budget.seconds)} allowed"
    trials = summary.plural(len(study.told()), "trial")
    tiles.append(("Cost of the search", summary.duration_text(study.elapsed_s), f"{trials}, {spent}"))
    tiles += [(name.capitalize(), text, "") for name, text in energy_rows(study, answer)]
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else ""), class_="tile")
            for name, value, note in tiles
        ),
        class_="tiles",
    )


def _change(before: str, after: str) -> Markup:
    return html(
        tag("span", before, class_="nowrap"),
        tag("span", " → ", class_="arrow"),
        tag("span", after, class_="nowrap"),
    )


def _apply(view: View, answer: Answer) -> Markup:
    given = commands(view.study, answer, view.repicked, view.yaml)
    if "apply" not in given:
        if "apply fastest" in given:
            lead = "Your script stays as it is, unless its training may change:"
            return html(tag("p", lead, class_="lead"), command(given["apply fastest"]))
        said = "Keep your script as it is: there is nothing to apply."
        if view.repicked is not None:
            said = "There is nothing to apply: what is not confirmed is not recommended."
        return tag("p", said, class_="lead")
    first = (
        html(
            tag("p", "Write these picks to a file, then train with it:", class_="lead"),
            command(given["write the file"]),
        )
        if "write the file" in given
        else tag("p", "Train with it; your script stays as it is:", class_="lead")
    )
    return html(first, command(given["apply"]))


def _caveats(view: View, answer: Answer) -> Markup:
    if not answer.caveats:
        return Markup()
    texts = (_sentence(view.study, c) for c in answer.caveats)
    title = "What weakens the claim" if answer.is_better else "What else was seen"
    return tag("div", tag("p", tag("strong", title)), bullets(texts), class_="note")


def _sentence(study: Study, text: str) -> str:
    """With a full stop, as what stands alone has one."""
    shown_text = clean(study, text).strip()
    return shown_text if shown_text.endswith((".", "!", "?")) else shown_text + "."


def _estimates_table(repicked: Repicked) -> Markup:
    if not repicked.estimates:
        return Markup()
    rows = [
        (
            f"t{e.trial:02d}",
            _long_config(e.config),
            f"{e.ratio:.2f}x",
            summary.plural(e.runs, "single run"),
            summary.bytes_text(e.peak_bytes),
        )
        for e in repicked.estimates
    ]
    columns = (
        Column(title="Trial"),
        Column(title="Configuration", is_wide=True),
        Column(title="Estimated", is_number=True),
        Column(title="Rests on", is_number=True),
        Column(title="Peak memory", is_number=True),
    )
    return table(columns, rows, caption="Estimated, not confirmed")


# -- evidence -----------------------------------------------------------------------------------------


def _picks_section(view: View) -> Markup:
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    base = answer.baseline_throughput
    named = picks(answer)
    chosen = {n: p for n, p in named.items() if not p.config.is_baseline}
    compiles = any(pays_back_text(pick) for pick in chosen.values())
    rows: list[tuple[object, ...]] = [
        (
            tag("span", "your script", class_="tag script"),
            "as it is",
            "1.00x",
            f"{summary.number_text(base.value)} {base.unit}",
            summary.bytes_text(answer.baseline_peak_bytes),
            "",
            *([""] if compiles else []),
        )
    ]
    rows += [
        (
            tag("span", name, class_=f"tag {name}"),
            _long_config(pick.config),
            html(
                tag("strong", summary.ratio_text(pick.speedup), class_="nowrap"),
                " ",
                tag("span", summary.plural(pick.speedup.n, "pair"), class_="soft nowrap"),
            ),
            f"{summary.number_text(pick.throughput.value)} {pick.throughput.unit}",
            summary.bytes_text(pick.peak_bytes),
            html(_verdict_tag(pick.loss.verdict), " ", effect_word(pick)),
            *([pays_back_text(pick)] if compiles else []),
        )
        for name, pick in chosen.items()
    ]
    columns = (
        Column(title="Pick"),
        Column(title="Configuration", is_wide=True),
        Column(title="Speed-up, confirmed"),
        Column(title="Throughput", is_number=True),
        Column(title="Peak memory", is_number=True),
        Column(title="Loss and training"),
        *([Column(title="Compiling")] if compiles else []),
    )
    missing = [f"{name}: {text}" for name, text in _missing(answer).items()]
    advised = answer.fastest.advice if answer.fastest is not None else ""
    advice = [f"fastest: {clean(study, advised)}"] if advised else []
    lead = (
        "safe leaves the arithmetic as it is, best may round differently, fastest may change the training "
        "and is named only where it reaches the same loss sooner."
    )
    control = (
        f"Control, your script against itself in the same pairs: {summary.control_text(answer.identical)}."
        if answer.identical is not None
        else ""
    )
    return html(
        _heading("picks", "Picks", lead),
        table(columns, rows, caption="Every pick beside your script"),
        bullets([*missing, *advice]),
        paragraphs(control),
        _method(study, answer),
    )


def _missing(answer: Answer) -> dict[str, str]:
    """Picks that there are none of, with what that means."""
    found: dict[str, str] = {}
    if not answer.is_better:
        found["best"] = "nothing that keeps the training was confirmed to be faster."
    elif answer.safe.config.is_baseline:
        found["safe"] = "nothing that leaves the training unchanged was confirmed to be faster."
    if answer.fastest is None:
        than = " than best" if answer.is_better else ""
        text = f"nothing that changes the training was shown to reach the same loss sooner{than}."
        found["fastest"] = text
    return found


def _method(study: Study, answer: Answer) -> Markup:
    if not study.told(Stage.CONFIRM):
        return paragraphs("Nothing was confirmed in pairs, so nothing is claimed.", class_="small soft")
    best = answer.best
    share = f" Its interval is one of {100 * best.speedup.confidence:.4g} %" if best.speedup.n else ""
    said = (
        "A speed-up rests on pairs of fresh processes made after the search, the script as it is and the "
        "configuration in turns; runs that chose a configuration are not in it."
        + (f"{share}, which allows for the number of finalists and looks." if share else "")
    )
    return paragraphs(said, class_="small soft")


def _verdict_tag(verdict: str) -> Markup:
    return tag("span", summary.LOSS_WORDS.get(verdict, verdict), class_=f"tag {verdict}")


def _front_section(view: View) -> Markup:
    answer = view.answer
    if answer is None or not view.tried:
        return Markup()
    unit = answer.baseline_throughput.unit
    placed = [t for t in view.tried if t.peak_bytes is not None]
    parts = [
        _heading(
            "front",
            "Speed against memory",
            "Every measured configuration; higher and further left is better. The stair joins those that no "
            "other beats on speed, peak memory and loss together.",
        )
    ]
    if len(placed) > 1:
        names = {pick.config: name for name, pick in reversed(shown_picks(answer).items())}
        joined = {m.config for m in answer.front}
        dots = [_front_dot(view, t, names, joined) for t in placed]
        stair = figures.staircase(
            (t.peak_bytes / _GIB, t.rate) for t in placed if t.config in joined and t.peak_bytes is not None
        )
        bound = view.study.spec.max_memory_bytes
        text = f"{len(dots)} configurations; {len(joined)} of them on the front."
        parts.append(
            figures.responsive(
                "pareto",
                lambda width, name: figures.scatter(
                    dots,
                    stair,
                    width,
                    name,
                    title="Throughput against peak memory of every configuration",
                    text=text,
                    x_title="peak memory, GiB",
                    y_title=f"throughput, {unit}",
                    bound=None if bound is None else bound / _GIB,
                ),
            )
        )
        parts.append(
            figures.legend(
                ("square", "script", "your script"),
                ("circle", "best", "a pick, or confirmed: loss holds"),
                ("diamond", "other", "loss not judged: single runs only"),
                ("cross", "bad", "loss worse, or it diverges"),
                ("line", "front", "front"),
            )
        )
    else:
        said = "Only one configuration was measured." if placed else "No trial reported its peak memory."
        parts.append(tag("p", said))
    parts.append(_front_table(view, answer))
    return html(*parts)


def _front_dot(view: View, tried: Tried, names: Mapping[Config, str], joined: set[Config]) -> figures.Dot:
    name = "script" if tried.config.is_baseline else names.get(tried.config, "")
    label = {"": "", "script": "your script"}.get(name, name)
    base = next((t.rate for t in view.tried if t.config.is_baseline), 0.0)
    ratio = f"{tried.rate / base:.2f}x, " if base and not tried.config.is_baseline else ""
    how = "confirmed" if tried.is_confirmed else summary.plural(tried.runs, "single run")
    tip = (
        f"t{tried.trial:02d} {_short_config(tried.config)}: {ratio}{summary.number_text(tried.rate)}, "
        f"{summary.bytes_text(tried.peak_bytes)}, {how}, loss {tried.loss}"
    )
    shape = "square" if tried.config.is_baseline else _LOSS_SHAPE[tried.loss]
    plain = "bad" if tried.loss == "fail" else "best" if tried.is_confirmed else "other"
    on_front = tried.config in joined
    class_ = name or plain + (" hollow" if on_front and plain == "other" else "")
    return figures.Dot(
        x=(tried.peak_bytes or 0) / _GIB,
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
                _short_config(m.config),
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


def _knobs_section(view: View) -> Markup:
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    own = summary.own_values(study)
    shown_in = shown_picks(answer)
    changed = [k for k, _ in summary.in_order({k: v for p in shown_in.values() for k, v in p.config.items()})]
    kept = [
        k
        for k, _ in summary.in_order(own)
        if k not in changed and (study.space is None or k in study.space.dimensions)
    ]
    found = summary.shares(study, answer.best.config)
    rows = [
        (
            knob,
            _value_text(own.get(knob)) or "not read",
            *(
                tag("strong", _value_text(pick.config[knob])) if knob in pick.config else "as it is"
                for pick in shown_in.values()
            ),
            _share_text(found, knob, is_changed=knob in answer.best.config),
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
        _heading(
            "knobs",
            "What each knob does",
            "What a knob brings within the winner was measured by taking it out again, where the budget had "
            "room for that. All else is an estimate from single runs of the search, and says so.",
        )
    ]
    if rows and shown_in:
        parts.append(table(columns, rows, caption="What is changed"))
    if kept:
        stays = ", ".join(f"{knob} {_value_text(own[knob])}" for knob in kept)
        parts.append(tag("p", f"As in your script: {stays}.", class_="small soft"))
    parts += [_effects_figure(view, found), _interactions(view)]
    if study.refusals:
        refused = [
            html(tag("code", knob), f": {clean(study, reason)}") for knob, reason in study.refusals.items()
        ]
        title = f"Left alone: {summary.plural(len(refused), 'knob')}, each with the reason"
        parts.append(tag("details", tag("summary", title), bullets(refused)))
    return html(*parts) if len(parts) > 1 and any(parts[1:]) else Markup()


def _share_text(found: Sequence[Share], knob: str, *, is_changed: bool) -> str:
    share = summary.share_of(found, knob)
    if share is None:
        return "not measured" if is_changed else ""
    one, said = share
    if one.pairs and one.low is not None and one.high is not None:
        return f"{said} [{100 * (one.low - 1):+.0f}, {100 * (one.high - 1):+.0f}], {one.pairs} pairs"
    return f"{said}, {one.how}"


def _effects_figure(view: View, found: Sequence[Share]) -> Markup:
    best = view.answer.best.config if view.answer is not None else _BASE
    notes = {"single runs": "single runs", "estimated": "estimated"}
    rows = [
        figures.Ratio(
            label=" with ".join(f"{knob} {_value_text(best[knob])}" for knob in share.knobs),
            value=share.ratio,
            # Two pairs give an interval that says nothing.
            low=None if 0 < share.pairs < _FEWEST_PAIRS else share.low,
            high=None if 0 < share.pairs < _FEWEST_PAIRS else share.high,
            class_="best",
            is_hollow=not share.pairs,
            note=notes.get(share.how, summary.plural(share.pairs, "pair")),
        )
        for share in found
    ]
    room = max(3, _MOST_EFFECTS - len(rows))
    told_already = {(knob, best[knob]) for share in found for knob in share.knobs}
    rows += [
        figures.Ratio(
            label=f"{e.knob} {_value_text(e.value)}",
            value=e.ratio,
            low=e.low,
            high=e.high,
            class_="other",
            shape="diamond",
            is_hollow=True,
            note=f"estimated, {summary.plural(e.configs, 'config')}",
        )
        for e in [e for e in best_of_each(view.effects) if (e.knob, e.value) not in told_already][:room]
    ]
    if not rows:
        return Markup()
    told = "; ".join(f"{r.label} {r.value:.2f}x ({r.note})" for r in rows[:8])
    chart = figures.responsive(
        "effects",
        lambda width, name: figures.ratios(
            rows,
            width,
            name,
            title="How many times as fast with a knob as without it",
            text=f"{told}.",
            axis="times as fast with it as without",
        ),
    )
    key = figures.legend(
        ("circle", "best", "measured: taken out of the winner, in pairs of fresh runs"),
        ("circle", "best hollow", "within the winner, from single runs with and without it; not confirmed"),
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
            f"{100 * (e.ratio - 1):+.0f} % [{100 * (e.low - 1):+.0f}, {100 * (e.high - 1):+.0f}]",
            "bring less together than apart" if e.ratio < 1 else "bring more together than apart",
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
        tag("h3", "Knobs that depend on one another"),
        table(columns, rows, caption="Estimated from single runs; not confirmed"),
    )


def _pairs_section(view: View) -> Markup:
    answer = view.answer
    if answer is None:
        return Markup()
    chosen = [(name, pick.config) for name, pick in shown_picks(answer).items()]
    if not chosen and view.compared:
        top = max(view.compared.values(), key=lambda c: c.speedup.value)
        chosen = [("closest", top.config)]
    parts: list[Markup] = []
    for name, config in chosen:
        rows = view.pairs(config)[:_MOST_PAIRS]
        if rows:
            parts.append(_pairs_figure(view, name, config, rows))
    if not parts:
        return Markup()
    lead = (
        "Two fresh processes next to each other in time, in turns: your script (square) and the "
        "configuration (circle). What slows the machine meets both. The ratio of each pair stands behind it."
    )
    return html(_heading("pairs", "Confirmation, pair by pair", lead), *parts)


def _pairs_figure(view: View, name: str, config: Config, rows: list[PairedRuns]) -> Markup:
    unit = view.answer.baseline_throughput.unit if view.answer is not None else "samples/s"
    points = [figures.Pair(label=f"pair {r.cycle}", base=r.base, ours=r.ours, ratio=r.ratio) for r in rows]
    compared = view.compared[config]
    class_ = name if name in _NAMES else "other"
    told = ", ".join(f"{r.ratio:.2f}x" for r in rows)
    chart = figures.responsive(
        f"pairs-{name}",
        lambda width, id_: figures.pairs(
            points,
            class_,
            width,
            id_,
            title=f"Pairs of {name}",
            text=f"Ratios by pair: {told}.",
            axis=f"throughput, {unit}",
        ),
        caption="It changes the training: its ratio is of the time to equal loss, the points are throughput."
        if compared.effect is Effect.TRAINING
        else "",
    )
    badge = tag("span", name, class_=f"tag {class_ if class_ != 'other' else 'plain'}")
    return html(
        tag("h3", badge, f" {summary.ratio_text(compared.speedup)}: {_long_config(config)}"),
        chart,
    )


def _bottleneck_section(view: View) -> Markup:
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
    }
    rows: list[figures.Share] = []
    for name, verdict in found.items():
        parts = [(colours[k], k, s) for k, s in verdict.shares.items() if k in colours and s > 0]
        rest = 1.0 - sum(share for _, _, share in parts)
        if rest > 0.005:
            parts.append(("other faint", "not known", rest))
        rows.append(
            figures.Share(
                label=_NAMES[name] if name == "script" else "With best",
                parts=tuple(parts),
                note=NAMES.get(verdict.kind, verdict.kind),
            )
        )
    if not any(v.shares for v in found.values()):
        return Markup()
    told = "; ".join(f"{r.label}: {r.note}" for r in rows)
    chart = figures.responsive(
        "bottleneck",
        lambda width, name: figures.shares(
            rows, width, name, title="Where the time of a step goes, before and after", text=f"{told}."
        ),
    )
    used = {words for row in rows for _, words, _ in row.parts}
    key = figures.legend(
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
    return html(_heading("bottleneck", "What holds it back, before and after"), chart, key, *details)


def _advice_section(view: View) -> Markup:
    hints = advice(view.study)
    if not hints:
        return Markup()
    rows = [
        (
            tag("code", hint.place),
            hint.text,
            "" if hint.part == "search" else bound_text(hint) or "not measured",
        )
        for hint in hints
    ]
    columns = (
        Column(title="Where"),
        Column(title="What could be changed", is_wide=True),
        Column(title="Buys"),
    )
    lead = (
        "What no knob does, read from the script as it was searched and never changed by autotune. What it "
        "may buy is a share of a step of your script as it is."
    )
    return html(
        _heading("advice", "In your own code", lead),
        table(columns, rows, caption="Lines of your script that could be changed"),
    )


def _runs_section(view: View) -> Markup:
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
        label = "your script" if name == "script" else f"{name}: {_short_config(config)}"
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
    parts = [
        _heading(
            "runs",
            "How steady it is",
            "Each run as a point with the interval within the run; filled ones are of pairs, hollow ones "
            "single runs of the search. The bar is their mean.",
        ),
        figures.responsive(
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
    ]
    if rows:
        medians = "; ".join(f"{r.label}: median {r.quantiles[2]:.4g} ms" for r in rows)
        parts += [
            tag("h3", "Step times"),
            tag("p", "The middle half of all steps as a box, 5 to 95 % as a line.", class_="soft"),
            figures.responsive(
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
        ]
    return html(*parts)


def _run(trial: Trial) -> figures.Run:
    assert trial.measurement is not None
    rate = trial.measurement.throughput
    tip = f"t{trial.number:02d}, {trial.stage.value}: {summary.number_text(rate.value)} {rate.unit}"
    return figures.Run(
        value=rate.value,
        low=rate.low,
        high=rate.high,
        is_fresh_pair=trial.stage is Stage.CONFIRM,
        tip=tip,
    )


def _loss_section(view: View) -> Markup:
    study, answer = view.study, view.answer
    if answer is None:
        return Markup()
    chosen = [("script", _BASE), *((n, p.config) for n, p in shown_picks(answer).items())]
    lines: list[figures.Curve] = []
    used: list[str] = []
    for name, config in chosen:
        for number, trace in traces(study, config, _TRACES_EACH):
            points = [(float(p.samples), p.loss) for p in trace if math.isfinite(p.loss)]
            thin = points[:: max(1, math.ceil(len(points) / _TRACE_POINTS))]
            if len(thin) < 3:
                continue
            used.append(name)
            lines.append(figures.Curve(class_=name, points=figures.smoothed(thin), label=f"t{number:02d}"))
            if sum(1 for n in used if n == name) == 1:
                lines.append(figures.Curve(class_=name, points=thin, is_raw=True))
    if not lines:
        said = "The script showed no loss, so only changes that keep the arithmetic can be recommended."
        return html(_heading("loss", "Loss"), tag("p", said)) if view.tried else Markup()
    verdicts = [
        html(
            tag("span", name, class_=f"tag {name}"),
            f" {clean(study, summary.loss_sentence(pick))}",
        )
        for name, pick in shown_picks(answer).items()
    ]
    chart = figures.responsive(
        "losses",
        lambda width, name: figures.curves(
            lines,
            width,
            name,
            title="Training loss of your script and of the picks over the samples seen",
            text=clean(
                study, " ".join(f"{n}: {summary.loss_sentence(p)}" for n, p in shown_picks(answer).items())
            )
            or "Your script alone.",
            x_title="samples seen",
            y_title="loss",
        ),
    )
    key = figures.legend(
        *(("line", name, "your script" if name == "script" else name) for name in dict.fromkeys(used))
    )
    lead = (
        "Over the samples of short runs, smoothed; the thin line is one run as it was. A short run cannot "
        "show the final accuracy."
    )
    return html(_heading("loss", "Loss beside your script's", lead), chart, key, bullets(verdicts))


def _failures_section(view: View) -> Markup:
    study = view.study
    rows_of = failed(study)
    if not rows_of:
        if view.answer is None:
            return Markup()
        return html(_heading("failures", "Failures"), tag("p", "No trial failed."))
    kinds: dict[str, list[Trial]] = {}
    for trial in rows_of:
        if trial.failure is not None:
            kinds.setdefault(trial.failure.kind.label, []).append(trial)
    rows: list[tuple[object, ...]] = []
    for label, trials in sorted(kinds.items(), key=lambda item: -len(item[1])):
        rows += [
            (
                Sorted(f"t{t.number:02d}", t.number),
                label,
                _short_config(t.config),
                clean(study, t.failure.message.splitlines()[0] if t.failure and t.failure.message else ""),
                t.stage.value,
            )
            for t in trials
        ]
    columns = (
        Column(title="Trial"),
        Column(title="Kind"),
        Column(title="Configuration", is_wide=True),
        Column(title="What happened"),
        Column(title="Stage"),
    )
    counted = ", ".join(f"{len(trials)} {label}" for label, trials in kinds.items())
    many = summary.plural(len(rows_of), "trial")
    lead = f"{many} failed and cost the search nothing but their time: {counted}."
    listed = table(columns, rows, caption="Failed trials", sorts=True)
    if len(rows) > 12:
        listed = tag("details", tag("summary", f"All {len(rows)} of them"), listed)
    return html(
        _heading("failures", "Failures, by kind and configuration", lead), listed, _tails(view, kinds)
    )


def _tails(view: View, kinds: Mapping[str, list[Trial]]) -> Markup:
    """The last lines of some of every kind; equal ones once."""
    parts: list[Markup] = []
    seen: set[str] = set()
    left_out = 0
    for trials in kinds.values():
        for trial in trials:
            text = log_tail(view.study, trial)
            if not text or text in seen:
                continue
            if len(parts) >= _MOST_TAILS:
                left_out += 1
                continue
            seen.add(text)
            parts.append(_tail(view, trial))
    if left_out:
        rest = f"{left_out} more are kept in the study: autotune show {view.study.spec.label}"
        parts.append(tag("p", rest, class_="small soft"))
    return html(tag("h3", "Last lines"), *parts) if parts else Markup()


def _tail(view: View, trial: Trial, *, is_open: bool = False) -> Markup:
    text = log_tail(view.study, trial)
    if not text or trial.failure is None:
        return Markup()
    title = f"t{trial.number:02d} {trial.failure.kind.label}: {_short_config(trial.config)}"
    return tag("details", tag("summary", title), tag("pre", text, tabindex="0"), open=is_open)


def _time_section(view: View) -> Markup:
    study = view.study
    # A probe explains and is no measurement, but it took its time.
    told = [t for t in (*study.told(), *study.told(Stage.WHY)) if t.finished_s > 0]
    if not told:
        return Markup()
    spans = sorted(
        (
            figures.Span(
                begin=max(0.0, t.finished_s - t.seconds),
                end=t.finished_s,
                class_=_STAGE_CLASS.get(t.stage.value, t.stage.value),
                tip=f"t{t.number:02d} {_STAGES[t.stage.value]}: {_short_config(t.config)}, "
                f"{t.seconds:.0f} s, {summary.status_word(t)}",
                is_failed=t.failure is not None and t.failure.kind.family is not Family.CANCELLED,
            )
            for t in told
        ),
        key=lambda s: s.begin,
    )
    seen = sorted(
        (t.finished_s, ratio.value)
        for t in told
        if t.stage in (Stage.BASELINE, Stage.START, Stage.REFINE)
        and (ratio := summary.speedup_of(study, t)) is not None
    )
    best = figures.steps_up(seen)
    spent: dict[str, float] = {}
    for t in told:
        spent[t.stage.value] = spent.get(t.stage.value, 0.0) + t.seconds
    words = ", ".join(f"{_STAGES[stage]} {summary.duration_text(s)}" for stage, s in spent.items())
    chart = figures.responsive(
        "time",
        lambda width, name: figures.timeline(
            spans,
            best,
            study.spec.budget.seconds,
            width,
            name,
            title="What ran when, and the best single run so far",
            text=f"Processes ran for: {words}.",
        ),
    )
    stages = [s.value for s in Stage if s.value in spent and s.value != "sentinel"]
    key = figures.legend(
        ("line", "best", "best single run so far, not confirmed"),
        *(("bar", _STAGE_CLASS.get(stage, stage), _STAGES[stage]) for stage in stages),
        ("bar", "bad", "failed"),
    )
    lead = (
        f"{summary.duration_text(study.elapsed_s)} of {summary.duration_text(study.spec.budget.seconds)} "
        f"were spent; processes ran for: {words}."
    )
    return html(_heading("time", "Where the time went", lead), chart, key)


def _trials_section(view: View) -> Markup:
    study = view.study
    told = study.told()
    if not told:
        return Markup()
    marks = summary.picks_of(view.answer)
    rows = [
        (
            Sorted(f"t{t.number:02d}", t.number),
            t.stage.value,
            html(
                _short_config(t.config),
                *(html(" ", tag("span", n, class_=f"tag {n}")) for n in marks.get(t.number, ())),
            ),
            *_trial_cells(study, t),
            Sorted(f"{t.seconds:.0f} s", round(t.seconds, 1)),
        )
        for t in told
    ]
    columns = (
        Column(title="Trial"),
        Column(title="Stage"),
        Column(title="Configuration", is_wide=True),
        Column(title="Single run", is_number=True),
        Column(title="Throughput", is_number=True),
        Column(title="Peak memory", is_number=True),
        Column(title="Result"),
        Column(title="Took", is_number=True),
    )
    listed = table(columns, rows, caption="Every trial, in the order of telling", sorts=True, cards=False)
    lead = "Ratios here are of single runs against your script; what is claimed rests on pairs alone."
    title = f"All {len(rows)} trials"
    return html(_heading("trials", "Trials", lead), tag("details", tag("summary", title), listed))


def _trial_cells(study: Study, trial: Trial) -> tuple[Sorted, Sorted, Sorted, str]:
    if trial.measurement is None:
        said = trial.failure.kind.label if trial.failure is not None else "open"
        return Sorted("", ""), Sorted("", ""), Sorted("", ""), said
    ratio, peak = summary.speedup_of(study, trial), trial.measurement.memory.peak_bytes
    rate = trial.measurement.throughput.value
    return (
        Sorted(
            "" if ratio is None else f"{ratio.value:.2f}x", "" if ratio is None else round(ratio.value, 4)
        ),
        Sorted(summary.number_text(rate), round(rate, 4)),
        Sorted("" if peak is None else summary.bytes_text(peak), peak or ""),
        "ok",
    )


def _environment_section(view: View) -> Markup:
    rows = [
        part for name, text in environment(view.study).items() for part in (tag("dt", name), tag("dd", text))
    ]
    lead = "What the figures hold for. On another machine, or after an upgrade, verify them again."
    return html(_heading("environment", "Environment", lead), tag("dl", *rows, class_="env"))


def _commands_section(view: View) -> Markup:
    words: Mapping[str, str] = {
        "write the file": "Write these picks to a file",
        "apply": "Train with best",
        "apply safe": "Train with safe",
        "apply fastest": "Train with fastest, which changes the training",
        "verify": "Measure it again, here and now, in fresh pairs",
        "search again": "Search again as this search was begun",
        "go on": "Go on with this search",
        "look": "Every trial in the terminal",
        "open in MLflow": "The same in the MLflow UI",
    }
    given = commands(view.study, view.answer, view.repicked, view.yaml)
    parts = [html(tag("h3", words[name]), command(text)) for name, text in given.items()]
    return html(_heading("commands", "Commands"), *parts)
