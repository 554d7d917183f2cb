"""What a person reads in the terminal: a line per trial while it runs, one screen at the end."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.core.answer import SearchOutcome
from autotune.core.closest import closest
from autotune.core.control import weakness
from autotune.core.disturbances import baseline_is_steady, busy_notes, is_crowded
from autotune.core.effect import Effect
from autotune.core.transfer import beliefs
from autotune.report.gains import gains_text
from autotune.report.summary import (
    LOSS_WORDS,
    apply_command,
    best_other,
    bytes_text,
    changes_text,
    changes_training,
    control_text,
    duration_text,
    further_reasons,
    likely_text,
    long_config,
    loss_sentence,
    number_text,
    other_configs,
    plural,
    ratio_text,
    short_config,
    space_text,
    speedup_of,
    waits_text,
)
from autotune.report.why import energy_rows, pays_back_text, why_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.answer import Answer, Recommendation
    from autotune.core.measurement import Estimate
    from autotune.core.study import Study
    from autotune.core.trial import Trial

_INDENT = 8
_REFUSALS = 4
_KEPT: Final = {
    Effect.EXACT: "training unchanged",
    Effect.NUMERIC: "rounds differently",
    Effect.TRAINING: "training changed",
}


def failure_counts(study: Study) -> dict[str, int]:
    """Failure label -> how many trials ended so, commonest first."""
    counts: dict[str, int] = {}
    for trial in study.told():
        if trial.failure is not None:
            counts[trial.failure.kind.label] = counts.get(trial.failure.kind.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def rate_text(rate: Estimate) -> str:
    """``1505 samples/s``."""
    return f"{number_text(rate.value)} {rate.unit}"


UNSTEADY: Final = "baseline unsteady"
"""In place of a ratio while the script's own rate is not known well enough for one."""


def result_text(study: Study, trial: Trial, *, shows_ratio: bool = True) -> str:
    """One trial's result in a few words: ratio and rate, or how it failed.

    Args:
        study: As of now.
        trial: Of it.
        shows_ratio: False while the script's own rate is not known well enough for one.
    """
    if trial.failure is not None:
        lines = trial.failure.message.splitlines()
        return f"failed: {trial.failure.kind.label}" + (f" ({lines[0]})" if lines else "")
    if trial.measurement is None:
        return trial.state.value
    ratio = speedup_of(study, trial) if shows_ratio else None
    shown = f"{ratio.value:.2f}x  " if ratio is not None and not trial.config.is_baseline else ""
    return shown + rate_text(trial.measurement.throughput)


def progress_line(study: Study, trial: Trial) -> str:
    """The line for one ended trial where there is no terminal."""
    is_steady = baseline_is_steady(study)
    parts = [
        f"[{trial.stage.value}] trial {trial.number}",
        short_config(trial.config),
        result_text(study, trial, shows_ratio=is_steady or bool(trial.group)),
    ]
    if changes_training(study, trial):
        parts.append("changes the training")
    best = best_other(study)
    if best is not None and not is_steady:
        parts.append(UNSTEADY)
    elif best is not None:
        is_faster = best[0] > 1.0
        parts.append(f"best {best[0]:.2f}x (trial {best[1].number})" if is_faster else "nothing faster yet")
    failed = failure_counts(study)
    if failed:
        kinds = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in failed.items())
        parts.append(f"{sum(failed.values())} failed ({kinds})")
    parts.append(f"{duration_text(study.spec.budget.seconds - study.elapsed_s)} left")
    return " | ".join(parts)


def final_screen(
    study: Study,
    answer: Answer,
    *,
    out: str = "",
    folder: str = "",
    links: Mapping[str, str] | None = None,
    unsent: int = 0,
    seconds: float | None = None,
    refusals: int | None = _REFUSALS,
    advice: Sequence[str] = (),
    every_figure: bool = False,
) -> str:
    """The answer as one screen, for stdout.

    Args:
        study: As it ended.
        answer: Its answer.
        out: Path of best.yaml as the user would type it; empty where none was written.
        folder: That the commands are typed in, where that is not the current one.
        links: Name -> address of where to look further.
        unsent: Records that MLflow has not received.
        seconds: Wall time spent; that of the study where None.
        refusals: Show at most so many knobs that were left alone; None for all.
        advice: What a person could change in the code, a line each.
        every_figure: Name those too that this machine does not give.
    """
    if answer.is_better:
        rows = _headline_rows(study, answer)
    elif answer.outcome is SearchOutcome.NOTHING_FASTER:
        rows = _no_gain_rows(study, answer, out)
    else:
        rows = _inconclusive_rows(study, answer, out)
    rows.append(("memory", _memory_sentence(study, answer)))
    rows += energy_rows(study, answer, always=every_figure)
    rows.append(("search", _search_sentence(study, answer, study.elapsed_s if seconds is None else seconds)))
    if study.because:
        rows.append(("", study.because))
    if answer.identical is not None:
        rows.append(("control", f"your script against itself: {control_text(answer.identical)}"))
    rows += [("note", caveat) for caveat in answer.caveats]
    if space := space_text(study):
        rows.append(("space", space))
    rows += [("earlier", text) for text in beliefs(study).told]
    rows += _refusal_rows(study, refusals)
    rows += [("advice" if i == 0 else "", line) for i, line in enumerate(advice)]
    if folder and out and (answer.is_better or answer.fastest is not None or answer.likely is not None):
        rows.append(("in", folder))
    if out and answer.is_better:
        applied = _apply_line(study, out)
        rows.append(("apply", applied))
        rows.append(("verify", applied.replace("autotune apply", "autotune verify", 1)))
        if others := _other_picks(answer):
            rows.append(("", others))
    elif out:
        by_name = [pick.pick for pick in (answer.fastest, answer.likely) if pick is not None]
        others = f"; other picks by name: {', '.join(by_name)}" if by_name else ""
        rows.append(("file", f"{out} holds your script unchanged{others}"))
    rows += _look_rows(study, links or {}, unsent)
    return "\n".join(f"{name:<{_INDENT}}{text}".rstrip() for name, text in rows) + "\n"


def wrapped(text: str, columns: int) -> str:
    """A screen for a terminal of so many columns: what is longer goes on below its text; commands stay whole.

    Args:
        text: Of `final_screen`.
        columns: Of the terminal; 0 leaves all as it is.
    """
    if columns <= 2 * _INDENT:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) <= columns or line[_INDENT:].startswith("autotune "):
            lines.append(line)
            continue
        below = " " * _INDENT
        lines += textwrap.wrap(
            line, columns, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines) + "\n"


def stopped_screen(study: Study, *, reason: str) -> str:
    """What is said where a search ended before it could answer anything.

    Args:
        study: As far as it came.
        reason: A whole sentence.
    """
    rows = [("none", reason)]
    best = best_other(study)
    if best is not None:
        rows.append(
            (
                "seen",
                f"{best[0]:.2f}x, not confirmed   {long_config(best[1].config)}   trial {best[1].number}",
            )
        )
    rows += [("note", text) for text in busy_notes(study)]
    rows.append(("go on", f"autotune resume {study.spec.label}"))
    return "\n".join(f"{name:<{_INDENT}}{text}" for name, text in rows) + "\n"


def _cells(pick: Recommendation, claim: str) -> tuple[str, ...]:
    """What stands in a pick's row, column by column."""
    return (
        f"{ratio_text(pick.speedup)} {claim}",
        rate_text(pick.throughput),
        bytes_text(pick.peak_bytes),
        LOSS_WORDS[pick.loss.verdict],
        plural(pick.speedup.n, "pair"),
    )


def _own_cells(answer: Answer) -> tuple[str, ...]:
    """The same of the script as it is."""
    rate, peak = answer.baseline_throughput, answer.baseline_peak_bytes
    return ("your script as it is", rate_text(rate), bytes_text(peak), "", "")


def _aligned(rows: Sequence[tuple[str, tuple[str, ...] | str]]) -> list[tuple[str, str]]:
    """Rows of cells with their columns below each other, figures to the right; plain texts as they are."""
    cells = [row for _, row in rows if not isinstance(row, str)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    found: list[tuple[str, str]] = []
    for name, row in rows:
        if isinstance(row, str):
            found.append((name, row))
            continue
        columns = [
            f"{cell:>{width}}" if i in (1, 2) else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        found.append((name, "  ".join(columns).rstrip()))
    return found


def _faster(study: Study, pick: Recommendation) -> str:
    beside = ", beside others" if is_crowded(study, pick.config) else ""
    weak = f", {found}" if (found := weakness(study, pick.speedup)) else ""
    return f"faster, {_KEPT[pick.effect]}{beside}{weak}"


def _headline_rows(study: Study, answer: Answer) -> list[tuple[str, str]]:
    best, safe, fastest = answer.best, answer.safe, answer.fastest
    listed: list[tuple[str, tuple[str, ...] | str]] = [
        ("best", _cells(best, _faster(study, best))),
        ("", changes_text(study, best.config)),
    ]
    if safe.config == best.config:
        listed.append(("safe", "the same: nothing in it changes the training"))
    elif safe.config.is_baseline:
        listed.append(("safe", "none: nothing that leaves the training unchanged was confirmed to be faster"))
    else:
        listed.append(("safe", _cells(safe, _faster(study, safe))))
        listed.append(("", changes_text(study, safe.config)))
    if fastest is not None:
        listed += _fastest_rows(study, fastest)
    else:
        listed.append(("fastest", _no_fastest(study)))
    listed.append(("yours", _own_cells(answer)))
    rows = _aligned(listed)
    bound = why_lines(study, answer)
    # What a script waits for is said once: by the verdict, where there is one.
    gains = [gains_text(study, best), "" if bound else waits_text(study, best)]
    why = [*(line for line in gains if line), *bound, *further_reasons(best)]
    rows += [("why" if i == 0 else "", reason) for i, reason in enumerate(why)]
    rows.append(("loss", loss_sentence(best)))
    if paid := pays_back_text(best):
        rows.append(("compile", paid))
    return rows


def _apply_line(study: Study, out: str, pick: str = "best") -> str:
    return apply_command(replace(study, spec=replace(study.spec, out=str(Path(out).absolute()))), pick)


def _other_picks(answer: Answer) -> str:
    """How to take another pick than best, where there is one."""
    named = {"safe": answer.safe, "fastest": answer.fastest}
    best = answer.best.config
    found = [n for n, p in named.items() if p is not None and not p.config.is_baseline and p.config != best]
    return "; ".join(f"{name} in place of best: --pick {name}" for name in found)


def _no_fastest(study: Study) -> str:
    if study.spec.space.allowed:
        return "none: nothing that changes the training was shown to reach the same loss sooner than best"
    if study.spec.effective_batch == "keep":
        return "none: other effective batches were not tried (--effective-batch keep)"
    return "none: no other effective batch was shown to reach the same loss sooner than best"


def _no_gain_rows(study: Study, answer: Answer, out: str) -> list[tuple[str, str]]:
    fastest = answer.fastest
    kept = " and keeps its training" if fastest is not None else ""
    listed: list[tuple[str, tuple[str, ...] | str]] = []
    if fastest is not None:
        listed += [*_fastest_rows(study, fastest), ("", _apply_line(study, out, "fastest") if out else "")]
    rows = [
        (
            "none",
            f"nothing beats your script{kept}: {plural(other_configs(study), 'other configuration')} tried",
        ),
        ("", answer.sentence),
        *(("why" if i == 0 else "", line) for i, line in enumerate(why_lines(study, answer))),
        *_aligned([*listed, ("yours", _own_cells(answer))]),
    ]
    if (near := closest(study)) is not None:
        known = ratio_text(near.ratio) if near.is_paired else f"{near.ratio.value:.2f}x"
        ratio = f"{known} {near.rests_on}"
        rows.append(("closest", f"{ratio}   {long_config(near.config)}   trial {near.trial}"))
    return [row for row in rows if row[1]]


def _inconclusive_rows(study: Study, answer: Answer, out: str) -> list[tuple[str, str]]:
    likely, fastest = answer.likely, answer.fastest
    listed: list[tuple[str, tuple[str, ...] | str]] = []
    if likely is not None:
        beside = ", beside others" if is_crowded(study, likely.config) else ""
        cells = (likely_text(likely) + beside, *_cells(likely, "")[1:4], _KEPT[likely.effect])
        listed += [("likely", cells), ("", changes_text(study, likely.config))]
    if fastest is not None:
        listed += [*_fastest_rows(study, fastest), ("", _apply_line(study, out, "fastest") if out else "")]
    tried = plural(other_configs(study), "other configuration")
    rows = [
        ("unclear", f"{tried} tried; nothing is confirmed, and a gain is not excluded"),
        *(("", text) for text in answer.unsettled),
        *(("why" if i == 0 else "", line) for i, line in enumerate(why_lines(study, answer))),
        *_aligned([*listed, ("yours", _own_cells(answer))]),
        ("go on", answer.resume),
    ]
    if likely is not None and out:
        rows.append(("try", _apply_line(study, out, "likely")))
    return [row for row in rows if row[1]]


def _fastest_rows(study: Study, fastest: Recommendation) -> list[tuple[str, tuple[str, ...] | str]]:
    rows: list[tuple[str, tuple[str, ...] | str]] = [
        ("fastest", _cells(fastest, "sooner at the same loss, training changed")),
        ("", changes_text(study, fastest.config)),
    ]
    return [*rows, ("", fastest.advice)] if fastest.advice else rows


def _memory_sentence(study: Study, answer: Answer) -> str:
    peak, own, total = answer.best.peak_bytes, answer.baseline_peak_bytes, study.memory_bytes
    of = f" of {bytes_text(total)}" if total else ""
    times = ""
    if peak is None:
        return bytes_text(None)
    if answer.is_better and own:
        times = f", {peak / own:.2f} times your script's {bytes_text(own)}"
    return f"{bytes_text(peak)}{of} at peak{times}"


def _search_sentence(study: Study, answer: Answer, seconds: float) -> str:
    """What the search has cost, and what failed on the way."""
    failed = sum(answer.failures.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in answer.failures.items())
    survived = f"{failed} failed and survived ({kinds})" if failed else "none failed"
    took = f"{duration_text(seconds)} of {duration_text(study.spec.budget.seconds)}"
    return f"{took}, {plural(len(study.told()), 'trial')}, {survived}"


def _refusal_rows(study: Study, at_most: int | None) -> list[tuple[str, str]]:
    everything = list(study.refusals.items())
    shown = everything if at_most is None else everything[:at_most]
    rows = [("left" if i == 0 else "", f"{knob}: {reason}") for i, (knob, reason) in enumerate(shown)]
    if len(everything) > len(shown):
        rows.append(("", f"and {len(everything) - len(shown)} more: autotune show {study.spec.label}"))
    return rows


def _look_rows(study: Study, links: Mapping[str, str], unsent: int) -> list[tuple[str, str]]:
    rows = [("look" if i == 0 else "", f"{name}: {link}") for i, (name, link) in enumerate(links.items())]
    rows = rows or [("look", f"autotune show {study.spec.label}")]
    if unsent:
        waiting = f"{plural(unsent, 'record')} not in MLflow yet; your result is safe"
        rows.append(("unsent", f"{waiting}. Send with: autotune sync {study.spec.label}"))
    return rows


def trials_table(study: Study, trials: Sequence[Trial] | None = None) -> str:
    """Every trial in a line: number, stage, config, result."""
    chosen = study.trials if trials is None else trials
    rows = [(str(t.number), t.stage.value, short_config(t.config), result_text(study, t)) for t in chosen]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}" for row in rows
    )
