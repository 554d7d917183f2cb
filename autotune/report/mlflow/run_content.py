"""Content of MLflow runs for a study and its trials: tags, figures, parameters. Pure; without mlflow.

Both kinds of runs share these names: `speedup` is confirmed, in pairs of runs after the search;
`single_run_speedup` is the ratio of a single run, and `best_so_far_speedup` its running maximum.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.compare.comparison import compare
from autotune.model.config import in_order
from autotune.model.measurement import Estimate
from autotune.model.trial import Family, Trial
from autotune.report.text.terminal_text import result_text
from autotune.report.view import bottleneck_text, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.config import Value
    from autotune.model.study import Study

LOSS_POINTS = 300
"""Points of one trial's trace, about what a chart on a screen resolves."""
LISTED_SEARCHES = 20
"""Searches in the experiment's note, newest first."""

SEARCHES = "## Searches"
"""Heading of the list of all searches in the experiment's note."""


def param_text(value: Value) -> str:
    """Format a knob's value as a parameter; charts distinguish numbers from words by the notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def thinned(points: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` evenly spaced points, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def trial_uid(study: Study, trial: Trial) -> str:
    """Return the identifier by which a trial's run is found."""
    # A trial has one outcome across attempts, so the attempt is no part of its name.
    return f"{study.spec.study_id}/t{trial.number:04d}a"


def script_id(study: Study) -> str:
    """Return the identifier of a script's searches: a digest of its path, as names are not unique."""
    path = os.path.normpath(study.spec.inspected)
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:16]


def resolved(study: Study, config: Mapping[str, Value]) -> dict[str, Value]:
    """Return every knob's value under this config; from facts alone, so that replays agree."""
    run = study.facts.run if study.facts is not None else None
    return {**(run.values if run is not None else {}), **config}


def rate_name(unit: str) -> str:
    """Return the metric of a throughput: ``throughput_samples_s``."""
    return "throughput_" + re.sub(r"[^A-Za-z0-9]+", "_", unit).strip("_")


def gib(size: int | None) -> float | None:
    """Convert bytes to GiB."""
    return None if size is None else size / summary.GIB


def log_tail(trial: Trial) -> str:
    """Return the last output of a failed trial; empty for others."""
    return str(trial.failure.evidence.get("log_tail", "")) if trial.failure is not None else ""


def trial_status(trial: Trial) -> str:
    """Return MLflow's status of a trial."""
    if trial.failure is None:
        return "FINISHED"
    return "KILLED" if trial.failure.kind.family is Family.CANCELLED else "FAILED"


def study_status(study: Study) -> str:
    """Return MLflow's status of a study."""
    if summary.failed_baseline(study) is not None:
        return "FAILED"
    return "KILLED" if study.stopped in ("interrupted", "signal") else "FINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Confirmed result of one configuration.

    Args:
        speedup: Ratio to the unchanged script; 1.0 without an interval for the script itself.
        loss: ``pass``, ``fail``, ``unclear``; empty for the script itself.
    """

    speedup: Estimate
    loss: str


def confirmed(study: Study, answer: Answer | None) -> dict[int, Confirmed]:
    """Return the confirmed results by trial number; one trial represents each config.

    Picks have the figures of the answer.
    """
    if answer is None:
        return {}
    found = {c.trial: Confirmed(speedup=c.speedup, loss=c.loss.verdict) for c in compare(study)}
    own = next((t.number for t in study.baseline if t.measurement is not None), None)
    if own is not None:
        same = Estimate(value=1.0, low=float("nan"), high=float("nan"), n=0, unit="ratio")
        found[own] = Confirmed(speedup=same, loss="")
    for pick in (answer.fastest, answer.safe, answer.best):
        if pick is not None and not pick.config.is_baseline:
            found[pick.trial] = Confirmed(speedup=pick.speedup, loss=pick.loss.verdict)
    return found


def speedup_figures(speedup: Estimate) -> dict[str, float | None]:
    """Return a confirmed speedup with its interval, as metrics."""
    return {"speedup": speedup.value, "speedup_ci_low": speedup.low, "speedup_ci_high": speedup.high}


def study_figures(study: Study, answer: Answer | None) -> dict[str, float | None]:
    """Return the metrics of a study's run in display order."""
    figures: dict[str, float | None] = {}
    if answer is not None:
        best, fastest = answer.best, answer.fastest
        unit = rate_name(best.throughput.unit)
        if answer.is_better:
            figures |= speedup_figures(best.speedup)
            figures |= {"safe_speedup": answer.safe.speedup.value}
            figures |= {"fastest_speedup": fastest.speedup.value if fastest else None}
        else:
            figures |= {"speedup": best.speedup.value}
            figures |= {"likely_speedup": answer.likely.speedup.value if answer.likely else None}
        figures |= {
            unit: best.throughput.value,
            f"baseline_{unit}": answer.baseline_throughput.value,
            "peak_mem_gib": gib(best.peak_bytes),
            "baseline_peak_mem_gib": gib(answer.baseline_peak_bytes),
            "loss_delta": best.loss.delta if answer.is_better and best.loss.level > 0 else None,
        }
        figures |= bottleneck_text.why_figures(study, answer)
    return figures | {
        "trials": float(len(study.finished())),
        "trials_failed": float(summary.failed_count(study)),
        "search_seconds": study.elapsed_s,
    }


def study_params(study: Study, answer: Answer | None) -> dict[str, str]:
    """Return the parameters of a study's run: `best` and every knob's value, changed ones first."""
    spec = study.spec
    params: dict[str, str] = {}
    if answer is not None:
        values = resolved(study, answer.best.config)
        changed = [k for k, _ in in_order(answer.best.config)]
        order = changed + [k for k, _ in in_order(values) if k not in changed]
        params |= {knob: param_text(values[knob]) for knob in order}
    return params | {
        "script": spec.title,
        "budget": summary.duration_text(spec.budget.seconds),
        # Not to be confused with the knob of that name, which is a number.
        "effective_batch_rule": spec.effective_batch,
    }


def trial_note(study: Study, trial: Trial) -> str:
    """Return the description of a trial's run: config, result, and how to see more."""
    lines = [
        f"**{trial.config.text()}**",
        f"{trial.stage.value}: {summary.plain(result_text(study, trial))}",
        "A single run; the study's run has the confirmed gain.",
    ]
    lines += [summary.plain(trial.reason)] if trial.reason else []
    return "\n\n".join([*lines, f"`autotune show {study.spec.label} --trial {trial.number}`"]) + "\n"


def trial_tags(study: Study, trial: Trial, command: str) -> dict[str, str]:
    """Return the tags of a trial's run: its kind, its outcome, and the exact command.

    Args:
        study: Study of the trial.
        trial: Trial with an outcome.
        command: Command of the trial; empty for the user's own.
    """
    tags = {
        "autotune.role": "trial",
        "autotune.trial_uid": trial_uid(study, trial),
        "autotune.study_id": study.spec.study_id,
        "autotune.status": summary.status_word(trial),
        "autotune.stage": trial.stage.value,
        "autotune.config": trial.config.text(),
        "autotune.command": command or summary.user_command(study),
        "autotune.why": trial.reason,
        "autotune.seed": str(trial.seed),
        "autotune.attempt": str(trial.attempt),
        "mlflow.note.content": trial_note(study, trial),
    }
    if trial.group:
        tags["autotune.pair"] = str(trial.group)
    if trial.failure is not None:
        tags |= {"autotune.kind": trial.failure.kind.label, "autotune.reason": trial.failure.message}
    if trial.measurement is not None:
        tags["autotune.ended"] = trial.measurement.ended
        if flags := trial.measurement.contamination.flags:
            tags["autotune.flags"] = ",".join(flags)
    return {key: value for key, value in tags.items() if value}


def trial_figures(study: Study, trial: Trial) -> dict[str, float | None]:
    """Return the metrics of a trial's run, without its loss trace."""
    seen = trial.measurement or (trial.failure.readings if trial.failure else None)
    ratio = summary.speedup_of(study, trial)
    figures: dict[str, float | None] = {"single_run_speedup": None if ratio is None else ratio.value}
    if seen is not None:
        figures |= {
            rate_name(seen.throughput.unit): seen.throughput.value,
            "step_time_ms": 1000 * seen.step_time_s.value,
            "peak_mem_gib": gib(seen.memory.peak_bytes),
            "data_wait_percent": 100 * seen.data_wait_frac,
            "compile_seconds": seen.compile_s,
            "startup_seconds": seen.startup_s,
            "effective_batch_seen": seen.effective_batch,
            "window_seconds": seen.window_s,
            **bottleneck_text.trial_figures(study, seen),
        }
    return figures | {"trial_seconds": trial.seconds}


def loss_trace(trial: Trial) -> Iterator[tuple[float, float, int]]:
    """Yield loss, seconds since the start of the trial, and samples; thinned to the chart's resolution."""
    seen = trial.measurement or (trial.failure.readings if trial.failure else None)
    for point in thinned(seen.loss if seen else (), LOSS_POINTS):
        yield point.loss, point.t_s, point.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search of an experiment in MLflow.

    Args:
        study_id: Identifier of the study.
        label: Name for users.
        answer: Answer in one line; empty while the search runs.
        link: Link to its run.
        started_ms: Start in milliseconds.
        params: Parameters of its run.
        script: Result of `script_id`; empty in old records.
    """

    study_id: str
    label: str
    answer: str
    link: str
    started_ms: int
    params: Mapping[str, str]
    script: str = ""


def searches_note(searches: Sequence[Search], most: int) -> str:
    """Return the list of searches for the experiment's note, newest first; empty for a single one.

    Args:
        searches: Searches of the experiment.
        most: Maximum number of characters; searches that do not fit are counted.
    """
    if len(searches) < 2:
        return ""
    newest = sorted(searches, key=lambda one: (-one.started_ms, one.study_id))
    rows = [f"| [{one.label}]({one.link}) | {_cell(one.answer)} |" for one in newest[:LISTED_SEARCHES]]
    while rows:
        older = [f"\nAnd {len(newest) - len(rows)} older."] if len(newest) > len(rows) else []
        note = "\n".join([SEARCHES, "", "| search | answer |", "|---|---|", *rows, *older]) + "\n"
        if len(note) <= most:
            return note
        rows.pop()
    return ""


def differing(searches: Sequence[Search]) -> list[str]:
    """Return the parameters that differ between searches, the most important first."""
    names = dict.fromkeys(name for one in searches for name in one.params)
    apart = [name for name in names if len({one.params.get(name) for one in searches}) > 1]
    return [name for name, _ in in_order(dict.fromkeys(apart, 0))]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
