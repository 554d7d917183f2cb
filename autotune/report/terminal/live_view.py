"""Screen output while a search runs: a live view on a terminal, else a line per trial.

A separate thread draws the view with a few control sequences, so no event of the search waits for a terminal.
It never hides the cursor, takes the whole screen or sets a mode, so a process that ends at any moment leaves
the terminal unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from autotune.answer.pick import answer_or_none
from autotune.clock import Clock, SystemClock
from autotune.compare.comparison import compare
from autotune.compare.disturbances import baseline_is_steady, busy_notes
from autotune.model.config import config_text
from autotune.model.effect import Effect
from autotune.model.study import SCALE, VERIFY
from autotune.model.trial import Stage
from autotune.report.listener import Listener
from autotune.report.terminal.async_writer import AsyncWriter, raw
from autotune.report.text.terminal_text import UNSTEADY, failure_counts, progress_line, result_text
from autotune.report.view.answer_view import rate_text
from autotune.report.view.summary import (
    best_other,
    bytes_text,
    duration_text,
    plural,
    ratio_text,
    script_name,
    speedup_of,
)
from autotune.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.config import Config
    from autotune.model.measurement import Estimate
    from autotune.model.study import Study
    from autotune.model.trial import Trial

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
"""Seconds between two drawings without events, as the clock advances."""

ASLEEP_S: Final = 5.0
"""Seconds without drawing after which the thread was stopped (Ctrl-Z) and its output may have moved."""

END_S: Final = 1.0
"""Seconds to wait at the end for a terminal that reads nothing (Ctrl-S)."""

WIDEST: Final = 10.0
"""Largest ratio of an interval's ends that a live screen shows; a wider one is not informative."""

TOO_NOISY: Final = "too noisy for a verdict"

_LABEL = 9
_RECENT = 6
_LEAST_COLUMNS = 20
_FEWEST_PAIRS = 3
_BAR = 24
_DOING: Final = {
    Stage.BASELINE: "measuring your unchanged script",
    Stage.INITIAL: "trying what is likely to help",
    Stage.REFINE: "exploring: what the model predicts to be fast",
    Stage.DRIFT_CHECK: "your script once more, to check for drift",
    Stage.CONFIRM: "confirming: fresh pairs with your script",
    Stage.ABLATE: "ablation of the winner, knob by knob",
    Stage.DIAGNOSE: "finding what limits it",
    Stage.REFERENCE: "your script on a further machine",
}
_SPENT: Final = {
    Stage.BASELINE: "script",
    Stage.DRIFT_CHECK: "script",
    Stage.INITIAL: "explore",
    Stage.REFINE: "explore",
    Stage.CONFIRM: "confirm",
    Stage.ABLATE: "why",
    Stage.DIAGNOSE: "why",
    Stage.REFERENCE: "script",
}
_STYLES: Final = {"bold": "1", "dim": "2", "good": "32", "bad": "33"}


def wants_live_view(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether this stream is an interactive terminal."""
    if environ.get("TERM", "") == "dumb" or environ.get("CI"):
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False


class Line(NamedTuple):
    """One line of the view.

    Args:
        label: Topic, in a column of its own; may be empty.
        text: Text in characters that a terminal shows.
        style: A key of `_STYLES`, or empty.
        right: Text at the right edge.
    """

    label: str
    text: str
    style: str = ""
    right: str = ""


class Progress(Listener):
    """Progress of a search: a live view on a terminal, else one plain line per trial.

    Writes to `stream` only, never raises, and blocks at the end only: a closed pipe ends the output, not the
    search.

    Args:
        stream: Where to write; the process's stderr by default.
        quiet: Show nothing at all.
        live: Force the live view on or off; None decides by the stream.
        clock: Clock for the time between two events.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        live: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._outlet = AsyncWriter.of(self._stream)
        self._is_live = wants_live_view(self._stream, os.environ) if live is None else live
        self._clock = clock or SystemClock()
        self._screen: Screen | None = None
        self._study: Study | None = None
        # Replaced and never changed, as the drawing thread and a signal handler read them at any time.
        self._running: dict[int, tuple[Trial, float]] = {}
        self._seen_s = self._clock.now_s()
        self._notes: tuple[str, ...] = ()
        self._stopping = ""
        self._found: tuple[Study, list[Line]] | None = None

    def study_began(self, study: Study) -> None:
        self._see(study)
        spec = study.spec
        begins = (
            f"study {spec.label}: {script_name(study)}, "
            f"{duration_text(spec.budget.seconds - study.elapsed_s)}, driver {spec.driver}"
        )
        if self._is_live and not self._quiet and self._screen is None:
            self._screen = Screen(self._stream, self.view, colour=not os.environ.get("NO_COLOR"))
            self._screen.say(begins)
            self._screen.start()
        else:
            self._line(begins)

    def trial_started(self, study: Study, trial: Trial) -> None:
        self._see(study)
        self._running = {**self._running, trial.number: (trial, self._clock.now_s())}
        self._changed()

    def trial_ended(self, study: Study, trial: Trial) -> None:
        self._see(study)
        self._running = {n: kept for n, kept in self._running.items() if n != trial.number}
        if self._is_plain:
            self._line(progress_line(study, trial))
        self._changed()

    def note(self, study: Study, text: str) -> None:
        self._see(study)
        self._notes = (*self._notes[-1:], text)
        if self._is_plain:
            self._line(text)
        self._changed()

    def stopping(self, why: str) -> None:
        # Runs in a signal handler, which may have interrupted this very screen and must not wait; the next
        # tick draws the text.
        self._stopping = why
        if self._is_plain:
            self._line(_stopping_text(why))

    def study_ended(self, study: Study) -> None:
        self._see(study)
        self._running = {}
        self.close()

    def close(self) -> None:
        """End the live view and release the terminal; repeats have no effect."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.stop()
        self._outlet.drain(END_S)

    @property
    def _is_plain(self) -> bool:
        """Whether no view is drawn: none is requested, it has ended, or another job has the terminal."""
        return self._screen is None or not self._screen.is_drawing

    def _see(self, study: Study) -> None:
        self._study = study
        self._seen_s = self._clock.now_s()

    def _changed(self) -> None:
        if self._screen is not None:
            self._screen.poke()

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._outlet.put(text + "\n")

    def view(self) -> list[Line]:
        """Return the current live view, the most important lines first."""
        study = self._study
        if study is None:
            return []
        now_s = self._clock.now_s()
        is_steady = baseline_is_steady(study)
        elapsed_s = study.elapsed_s + now_s - self._seen_s
        if self._found is None or self._found[0] is not study:
            self._found = (study, _found(study))
        finished = study.finished()
        left = _clock_text(study.spec.budget.seconds - elapsed_s)
        right = f"{left} left of {duration_text(study.spec.budget.seconds)}"
        running = [
            _trial_line(t, f"running {duration_text(now_s - since)}") for t, since in self._running.values()
        ]
        return [
            Line("", f"{study.spec.label}   {plural(len(finished), 'trial')}", "bold", right),
            Line("now", self._doing(study), "bad" if self._stopping else ""),
            *self._found[1],
            *_time_lines(study, self._spent(study, now_s), elapsed_s),
            *running,
            *(Line("note", text, "dim") for text in self._notes),
            *(
                _trial_line(t, result_text(study, t, shows_ratio=is_steady or bool(t.group)), "dim")
                for t in reversed(finished[-_RECENT:])
            ),
        ]

    def _spent(self, study: Study, now_s: float) -> dict[str, float]:
        """Return the seconds of trials by purpose, running ones included."""
        parts = [(t.stage, t.seconds) for t in study.trials]
        parts += [(t.stage, now_s - since) for t, since in self._running.values()]
        spent: dict[str, float] = {}
        for stage, seconds in parts:
            spent[_SPENT[stage]] = spent.get(_SPENT[stage], 0.0) + seconds
        return spent

    def _doing(self, study: Study) -> str:
        if self._stopping:
            return _stopping_text(self._stopping)
        stages = [trial.stage for trial, _ in self._running.values()]
        if not stages:
            return "starting" if not study.trials else "choosing what comes next"
        if study.spec.purpose == VERIFY:
            return "fresh pairs: your script and the file's configuration in alternation"
        if study.spec.purpose == SCALE:
            return "fresh runs with each number of processes in alternation"
        return _DOING[stages[-1]]


def _stopping_text(why: str) -> str:
    if why == "interrupted":
        return "stopping with the best so far; again: at once"
    return "stopping with the best so far"


def _trial_line(trial: Trial, result: str, style: str = "") -> Line:
    return Line(f"  {trial.number}", f"{trial.stage.value:<8} {config_text(trial.config)}   {result}", style)


def _clock_text(seconds: float) -> str:
    """Format seconds as ``1:05``, ``2:03:09``; never below zero."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _found(study: Study) -> list[Line]:
    """Return the results so far: the script, the best against it, the front, failures."""
    if study.spec.purpose == SCALE:
        return [Line("rates", text) for text in _rates(study)] + _trouble(study)
    answer = answer_or_none(study)
    lines = [Line("yours", "not measured yet" if answer is None else _yours(study, answer))]
    best = _confirmed(study, answer) or _seen(study)
    lines += best or [Line("best", "only your script was measured so far")]
    if answer is not None and len(answer.front) > 1 and baseline_is_steady(study):
        base = answer.baseline_throughput.value
        shown = [f"{m.throughput / base:.2f}x {bytes_text(m.peak_bytes)}" for m in answer.front if base > 0]
        lines.append(Line("front", f"{len(shown)}: " + ", ".join(shown)))
    return lines + _trouble(study)


def _rates(study: Study) -> list[str]:
    """Return the newest rate of each number of processes."""
    newest = {t.config: t.measurement.throughput for t in study.finished() if t.measurement is not None}
    return [f"{config_text(config)}: {rate_text(rate)}" for config, rate in newest.items()]


def _trouble(study: Study) -> list[Line]:
    """Return other programs on the machine, and failures by kind."""
    failed = failure_counts(study)
    lines = [Line("busy", text, "bad") for text in busy_notes(study)[:1]]
    if failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in failed.items())
        lines.append(Line("failed", f"{sum(failed.values())} of {len(study.finished())}: {kinds}", "bad"))
    else:
        lines.append(Line("failed", "none"))
    return lines


def _yours(study: Study, answer: Answer) -> str:
    """Return the unchanged script's rate: with one run the interval of its window, with two none of use."""
    rate = answer.baseline_throughput
    kind = "one run" if rate.n == 1 else f"mean of {rate.n} runs"
    if rate.n < _FEWEST_PAIRS:
        runs = [t.measurement for t in study.finished() if t.config.is_baseline and t.measurement is not None]
        if len(runs) > 1:
            return f"{rate_text(rate)}, {kind}"
        rate, kind = runs[0].throughput, "within one run"
    interval = f"[{rate.low:.4g}, {rate.high:.4g}]" if _is_precise(rate) else f"({TOO_NOISY})"
    return f"{rate_text(rate)} {interval} {kind}"


def _is_precise(estimate: Estimate) -> bool:
    """Return whether the interval is narrow enough to be shown; one that reaches 0 or infinity never is."""
    return 0.0 < estimate.low <= estimate.high <= WIDEST * estimate.low


def _ratio(estimate: Estimate) -> str:
    return ratio_text(estimate) if _is_precise(estimate) else TOO_NOISY


def _confirmed(study: Study, answer: Answer | None) -> list[Line]:
    """Return the best by fresh pairs, and whether it can be claimed; empty before the first pair."""
    if answer is None:
        return []
    if answer.is_better:
        best = answer.best
        pairs = plural(best.speedup.n, "pair")
        gain = best.speedup
        shown = ratio_text(gain) if _is_precise(gain) else f"at least {gain.low:.2f}x"
        text = f"{shown} confirmed in {pairs}"
        return _best(text, best.config, "good")
    training_preserving = [c for c in compare(study) if c.effect is not Effect.TRAINING]
    top = max(training_preserving, key=lambda c: c.speedup.value, default=None)
    if top is None:
        return []
    pairs = plural(top.speedup.n, "pair")
    if top.speedup.n < _FEWEST_PAIRS:
        return _best(f"{top.speedup.value:.2f}x in {pairs} so far, not confirmed", top.config)
    return _best(f"{_ratio(top.speedup)} in {pairs}, not confirmed", top.config)


def _seen(study: Study) -> list[Line]:
    """Return the best single run, with the interval of its own window."""
    best = best_other(study)
    if best is None:
        return []
    ratio = speedup_of(study, best[1])
    if not baseline_is_steady(study):
        return [Line("best", f"{UNSTEADY}: its ratio is not known yet", "bad")]
    if best[0] <= 1.0:
        return [Line("best", f"nothing faster yet; {best[0]:.2f}x came closest")]
    shown = f"{best[0]:.2f}x" if ratio is None else _ratio(ratio)
    return _best(f"{shown} within one run, not confirmed", best[1].config)


def _best(text: str, config: Config, style: str = "bold") -> list[Line]:
    return [Line("best", text, style), Line("with", config_text(config))]


def _time_lines(study: Study, spent: Mapping[str, float], elapsed_s: float) -> list[Line]:
    """Return a bar of the budget, and the use of its time."""
    budget_s = study.spec.budget.seconds
    share = min(1.0, max(0.0, elapsed_s / budget_s)) if budget_s > 0 else 1.0
    full = round(_BAR * share)
    # Parallel trials take more than the elapsed time.
    parts = [*spent.items(), ("other", elapsed_s - sum(spent.values()))]
    shown = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in parts if seconds >= 1.0)
    return [
        Line("time", f"[{'#' * full}{'-' * (_BAR - full)}] {share:.0%} of the budget"),
        Line("spent", shown or "nothing yet"),
    ]


class Screen:
    """Lines in place at the end of a terminal's output, drawn by a separate thread.

    Args:
        stream: The terminal.
        view: Function that returns the lines; runs in the thread.
        colour: Whether to use colours and weights.
    """

    def __init__(self, stream: TextIO, view: Callable[[], Sequence[Line]], *, colour: bool = True) -> None:
        self._stream = raw(stream)
        self._view = view
        self._colour = colour
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-view", daemon=True)
        self._widths: list[int] = []
        self._above: list[str] = []
        self._drawn_s = 0.0
        try:
            self._fd: int | None = stream.fileno()
        except (OSError, ValueError):
            self._fd = None

    def start(self) -> None:
        """Start to draw."""
        _shown.append(self)
        self._thread.start()

    def poke(self) -> None:
        """Draw soon; returns at once. Not for signal handlers: an event's lock is not re-entrant."""
        self._wake.set()

    def say(self, text: str) -> None:
        """Print a permanent line above the view."""
        self._above.append(text)
        self._wake.set()

    def stop(self) -> None:
        """Remove the view; the cursor is at its start."""
        self._over.set()
        self._wake.set()
        self._leave()
        if self._thread.is_alive():
            self._thread.join(END_S)
        if not self._thread.is_alive():
            self._flush()

    def _leave(self) -> None:
        with contextlib.suppress(ValueError):
            _shown.remove(self)

    @property
    def is_drawing(self) -> bool:
        """Whether it is visible: its thread is alive, and no other job has the terminal."""
        return self._thread.is_alive() and self._is_watched()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._draw(self._view())
                self._wake.wait(TICK_S)
                self._wake.clear()
            self._draw(())
        except OSError:
            pass  # the terminal is gone
        except Exception:
            # First restore the destination of warnings, this one included.
            self._leave()
            log.exception("the live view ended; the search continues")
        finally:
            self._leave()
            self._flush()

    def _flush(self) -> None:
        """Print the lines for above the view plainly, once no view is drawn."""
        above, self._above = self._above, []
        with contextlib.suppress(OSError, ValueError):
            if above:
                self._write("".join(f"{one_line(text)}\n" for text in above))

    def _draw(self, lines: Sequence[Line]) -> None:
        if not self._is_watched():
            self._widths = []
            self._flush()
            return
        columns, rows = self._size()
        now_s = time.monotonic()
        if now_s - self._drawn_s > ASLEEP_S:
            self._widths = []
        self._drawn_s = now_s
        # On a terminal that became narrower, the old lines take several rows each.
        up = sum(max(1, -(-width // columns)) for width in self._widths)
        above, self._above = self._above, []
        shown = [fitted(line, columns - 1) for line in lines[: max(0, rows - 1)]]
        parts = ["\r", f"\x1b[{min(up, rows - 1)}A" if up else ""]
        parts += [f"{one_line(text)}\x1b[K\r\n" for text in above]
        parts += [f"{self._styled(*one)}\x1b[K\r\n" for one in shown]
        parts.append("\x1b[J")
        self._widths = [len_of(label + text) for label, text, _ in shown]
        self._write("".join(parts))

    def _styled(self, label: str, text: str, style: str) -> str:
        if not self._colour:
            return label + text
        name = f"\x1b[2m{label}\x1b[0m" if label.strip() else label
        return name + (f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text)

    def _write(self, text: str) -> None:
        if self._fd is None:
            self._stream.write(text)
            self._stream.flush()
            return
        # Not through the stream: its lock, held by this thread, would block other writers.
        data = text.encode(self._stream.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self._fd, data) :]

    def _size(self) -> tuple[int, int]:
        """Return the current columns and rows; the usual ones if the terminal reports none."""
        try:
            columns, rows = os.get_terminal_size(self._fd) if self._fd is not None else (0, 0)
        except OSError:
            columns, rows = 0, 0
        return max(_LEAST_COLUMNS, columns or 80), max(2, rows or 24)

    def _is_watched(self) -> bool:
        """Return False while another job has the terminal (Ctrl-Z and bg)."""
        if self._fd is None:
            return True
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True  # not the controlling terminal, so no other job uses it


_shown: list[Screen] = []


def say_above(text: str) -> bool:
    """Print a line above the current view; return False if there is none."""
    if not _shown:
        return False
    _shown[-1].say(text)
    return True


def len_of(text: str) -> int:
    """Return the columns of a text in a terminal: two for wide characters, none for combining marks."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, columns: int) -> str:
    """Return the text, shortened to the columns with ``...``."""
    if len_of(text) <= columns:
        return text
    while text and len_of(text) > columns - 3:
        text = text[:-1]
    return text.rstrip() + "..."[: max(0, columns)]


def fitted(line: Line, columns: int) -> tuple[str, str, str]:
    """Return label, text and style of a line that fits the columns."""
    label = f"{line.label:<{_LABEL}}" if line.label else ""
    text, right = one_line(line.text), one_line(line.right)
    if right:
        text = cut(text, columns - len(right) - 2)
        return "", f"{text}{' ' * (columns - len_of(text) - len(right))}{right}", line.style
    return label, cut(text, columns - len(label)), line.style
