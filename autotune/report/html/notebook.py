"""Notebook output: a card, a table of trials, a figure. pandas and matplotlib come with MLflow."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from autotune.compare.disturbances import is_disturbed
from autotune.errors import BackendError
from autotune.model.config import config_text
from autotune.report.html.markup import Markup, html, tag
from autotune.report.text.answer_screen import INDENT, answer_screen
from autotune.report.view.summary import headline, speedup_of

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study

_CARD = "border:1px solid #8885; border-radius:8px; padding:12px 16px; max-width:60em"
_COLOURS = {"baseline": "#888", "other": "#4477aa", "best": "#228833"}


def card(study: Study, answer: Answer, *, out: str) -> str:
    """Return the answer as HTML with inline styles; nothing is fetched.

    Args:
        study: Ended study.
        answer: Its answer.
        out: Path of best.yaml.
    """
    rows: list[Markup] = []
    for line in answer_screen(study, answer, out=out).splitlines()[1:]:
        name, text = line[:INDENT].strip(), line[INDENT:]
        cell = tag("code", text) if text.startswith("autotune ") else text
        rows.append(
            tag(
                "tr",
                tag(
                    "th",
                    name,
                    style="text-align:left; padding-right:1em; vertical-align:top; font-weight:600",
                ),
                tag("td", cell, style="text-align:left"),
            )
        )
    title = tag("div", headline(study, answer, interval=True), style="font-size:1.2em; font-weight:600")
    return str(tag("div", html(title, tag("table", *rows)), style=_CARD))


def frame(study: Study) -> Any:
    """Return a pandas DataFrame with a row per finished trial.

    Columns: ``trial``, ``stage``, ``state`` (``measured`` or the failure's label), ``config``, a column per
    knob, ``throughput`` in `unit`, ``speedup`` (ratio to the baseline, a single run), ``peak_memory_gib``,
    ``data_wait_frac``, ``disturbed``, ``seconds``.

    Raises:
        BackendError: pandas is not installed.
    """
    pandas = _imported("pandas")
    rows: list[dict[str, Any]] = []
    for trial in study.finished():
        measured, failure = trial.measurement, trial.failure
        ratio = speedup_of(study, trial)
        peak = None if measured is None else measured.memory.peak_bytes
        rows.append(
            {
                "trial": trial.number,
                "stage": trial.stage.value,
                "state": "measured" if failure is None else failure.kind.label,
                "config": config_text(trial.config),
                **trial.config,
                "throughput": None if measured is None else measured.throughput.value,
                "unit": None if measured is None else measured.throughput.unit,
                "speedup": None if ratio is None else ratio.value,
                "peak_memory_gib": None if peak is None else peak / 2**30,
                "data_wait_frac": None if measured is None else measured.data_wait_frac,
                "disturbed": measured is not None and is_disturbed(study, trial),
                "seconds": trial.seconds,
            }
        )
    return pandas.DataFrame(rows)


def figure(study: Study, answer: Answer) -> Any:
    """Return a matplotlib figure: speed of every measured trial over the baseline, in the order of running.

    Raises:
        BackendError: matplotlib is not installed.
    """
    # Without pyplot nothing is registered or has to be closed, but a notebook needs the picture itself.
    base = _imported("matplotlib.figure").Figure
    drawn = type("Figure", (base,), {"_repr_png_": _png})(figsize=(8, 3.5), layout="constrained")
    axes = drawn.add_subplot()
    for kind, colour in _COLOURS.items():
        shown = [
            (trial.number, ratio.value)
            for trial in study.finished()
            if _kind(trial.config, answer) == kind and (ratio := speedup_of(study, trial)) is not None
        ]
        if shown:
            axes.scatter(*zip(*shown, strict=True), color=colour, label=kind)
    axes.axhline(1.0, color=_COLOURS["baseline"], linewidth=1)
    axes.set(xlabel="trial", ylabel="speed over the baseline", title=headline(study, answer))
    axes.legend()
    return drawn


def _png(drawn: Any) -> bytes:
    picture = io.BytesIO()
    drawn.savefig(picture, format="png")
    return picture.getvalue()


def _kind(config: Any, answer: Answer) -> str:
    if config.is_baseline:
        return "baseline"
    return "best" if answer.is_better and config == answer.best.config else "other"


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise BackendError(f"{package} is not installed here", hint=f"pip install {package}") from error
