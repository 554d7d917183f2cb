"""The view of a search while it runs: what it says, and that a terminal survives it."""

import io
import logging
import os
import re
from dataclasses import replace

import pytest
import terminal
from study_fakes import BASE, FIDELITY, SAFE, measured, spec, study

from autotune.clock import SimulatedClock
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.machine_load import Culprit, MachineLoad
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Budget
from autotune.model.trial import Stage, Trial
from autotune.report.terminal import live_view
from autotune.report.terminal.live_view import (
    Line,
    Progress,
    Screen,
    cut,
    fitted,
    len_of,
    say_above,
    wants_live_view,
)
from autotune.report.text.terminal_text import progress_line
from autotune.text.printable import one_line

SPACE = SearchSpace(dimensions={"num_workers": Dimension(knob="num_workers", values=(0, 4), own=0)})


def reported(**options):
    stream = io.StringIO()
    progress = Progress(stream, clock=SimulatedClock(), **options)
    done = study()
    progress.study_began(replace(done, trials=()))
    for i, trial in enumerate(done.trials):
        progress.trial_started(replace(done, trials=done.trials[:i]), trial)
        progress.trial_ended(replace(done, trials=done.trials[: i + 1]), trial)
    progress.note(done, "confirmation began")
    progress.study_ended(done)
    return stream.getvalue()


def seen(done, *running, after_s=0.0, columns=100, stopping=""):
    """The lines of the view as they stand on a terminal of that width."""
    clock = SimulatedClock()
    progress = Progress(io.StringIO(), quiet=True, clock=clock)
    progress.study_began(done)
    for trial in running:
        progress.trial_started(done, trial)
    if stopping:
        progress.stopping(stopping)
    clock.sleep(after_s)
    return ["".join(fitted(line, columns - 1)[:2]) for line in progress.view()]


def of(lines, label):
    """The text behind that label."""
    return next(line[9:] for line in lines if line.startswith(f"{label:<9}"))


def pairs(count, ratio=1.5):
    """Confirmation cycles of the script and a config."""
    runs = []
    for group in range(1, count + 1):
        number = 6 + 2 * group
        wobble = 1 + 0.002 * group
        for offset, (config, value) in enumerate(((BASE, 100.0 * wobble), (SAFE, 100.0 * ratio))):
            run = measured(number + offset, config, value, Stage.CONFIRM)
            runs.append(replace(run, group=group))
    return runs


def test_without_a_terminal_there_is_one_line_per_trial():
    lines = reported(live=False).splitlines()
    assert len(lines) == 1 + 6 + 1
    assert lines[0] == "study train-1121-1002: train.py, 2 min, driver inline"
    assert lines[-1] == "confirmation began"
    assert "best" not in lines[1]
    assert "\x1b" not in "".join(lines)


def test_quiet_writes_nothing():
    assert reported(live=False, quiet=True) == ""
    assert reported(live=True, quiet=True) == ""


def test_a_single_run_is_shown_as_one_with_the_interval_of_its_window():
    lines = seen(study())
    assert of(lines, "best") == "2.00x [1.96, 2.04] within one run, not confirmed"
    assert of(lines, "with") == "precision=bf16 batch_size=64 num_workers=4 threads=2"
    assert of(lines, "yours") == "100 samples/s, mean of 2 runs"


def test_one_run_of_the_script_shows_the_interval_of_its_window():
    lines = seen(study(trials=study().trials[:1]))
    assert of(lines, "yours") == "100 samples/s [98, 102] within one run"
    assert of(lines, "best") == "only your script was measured so far"


def test_before_the_first_run_nothing_is_claimed():
    lines = seen(study(trials=()))
    assert of(lines, "now") == "starting"
    assert of(lines, "yours") == "not measured yet"
    assert of(lines, "failed") == "none"


def test_one_pair_is_no_claim_and_more_are_one_only_where_the_interval_says_so():
    begun = study(trials=(*study().trials, *pairs(1)), space=SPACE)
    assert of(seen(begun), "best") == "1.50x in 1 pair so far, not confirmed"
    two = study(trials=(*study().trials, *pairs(2)), space=SPACE)
    assert re.fullmatch(r"1\.50x \[1\.\d\d, \d\.\d\d\] confirmed in 2 pairs", of(seen(two), "best"))
    won = study(trials=(*study().trials, *pairs(6)), space=SPACE)
    assert re.fullmatch(r"1\.4\dx \[1\.\d\d, 1\.\d\d\] confirmed in 6 pairs", of(seen(won), "best"))
    lost = study(trials=(*study().trials, *pairs(6, ratio=0.9)), space=SPACE)
    assert "in 6 pairs, not confirmed" in of(seen(lost), "best")


def beside(trial, cores):
    """The same run with others on the machine."""
    seen = replace(trial.outcome.contamination, foreign_cpu_frac=cores)
    return replace(trial, outcome=replace(trial.outcome, contamination=seen))


def test_no_ratio_is_shown_while_the_scripts_own_rate_is_disturbed_or_unsteady():
    own, fast = measured(0, BASE, 10.0, Stage.BASELINE), measured(2, SAFE, 220.0)
    again = measured(1, BASE, 100.0, Stage.BASELINE)
    for runs in ((beside(own, 1.0), fast), (own, again, fast)):
        begun = study(trials=runs)
        lines = seen(begun)
        assert of(lines, "best") == "baseline unsteady: its ratio is not known yet"
        assert "22.0" not in "".join(lines)
        assert "2.20x" not in "".join(lines)
        plain = progress_line(begun, fast)
        assert "baseline unsteady" in plain
        assert "x " not in plain.split("|")[2]
    steady = study(trials=(beside(own, 1.0), again, fast))
    assert of(seen(steady), "best").startswith("2.20x")
    assert "best 2.20x (trial 2)" in progress_line(steady, fast)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 3.0), (0.07, 106.61), (1.0, float("inf")), (float("nan"), 2.0)]
)
def test_an_interval_that_says_nothing_is_not_shown(low, high):
    def noisy(trial):
        rate = replace(trial.outcome.throughput, low=100.0 * low, high=100.0 * high)
        return replace(trial, outcome=replace(trial.outcome, throughput=rate))

    trials = study().trials
    found = study(trials=(*trials[:3], noisy(trials[3])))
    assert of(seen(found), "best") == "too noisy for a verdict within one run, not confirmed"
    alone = study(trials=(noisy(trials[0]),))
    assert of(seen(alone), "yours") == "100 samples/s (too noisy for a verdict) within one run"


def test_what_makes_the_machine_busy_has_a_line_of_its_own():
    busy = MachineLoad(foreign_cores=1.0, cpus=2, culprits=(Culprit(name="ffmpeg", pid=4711, cores=1.0),))
    lines = seen(study(busy=(busy,)))
    assert of(lines, "busy") == 'The machine was busy: "ffmpeg" (pid 4711) used 1.0 of 2 cores.'
    assert not [line for line in seen(study()) if line.startswith("busy")]


def test_the_front_and_the_failures_by_kind_are_counted():
    lines = seen(study())
    assert of(lines, "failed") == "1 of 6: out of host memory 1"
    light = measured(6, Config({"batch_size": 8}), 80.0)
    small = replace(light.outcome, memory=replace(light.outcome.memory, pss=512 * 1024**2))
    both = study(trials=(*study().trials, replace(light, outcome=small)))
    assert of(seen(both), "front") == "2: 2.00x 1.0 GiB, 0.80x 512 MiB"


def test_time_runs_between_events_and_is_reported_by_use():
    running = Trial(number=6, config=SAFE, stage=Stage.REFINE, fidelity=FIDELITY)
    lines = seen(study(elapsed_s=70.0), running, after_s=61)
    assert lines[0].startswith("train-1121-1002   6 trials")
    assert lines[0].endswith("7:49 left of 10 min")
    assert of(lines, "now") == "exploring: what the model predicts to be fast"
    assert of(lines, "time") == "[#####-------------------] 22% of the budget"
    assert of(lines, "spent") == "script 20 s, explore 101 s, other 10 s"
    assert of(lines, "  6") == "refine   num_workers=4   running 61 s"


def test_every_stage_has_words():
    for stage in Stage:
        running = Trial(number=6, config=SAFE, stage=stage, fidelity=FIDELITY)
        assert of(seen(study(), running), "now")


def test_a_stop_is_answered_at_once():
    assert "again: at once" in of(seen(study(), stopping="interrupted"), "now")
    plain = io.StringIO()
    progress = Progress(plain, live=False)
    progress.stopping("signal")
    assert plain.getvalue() == "stopping with the best so far\n"


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns):
    long = study(spec=spec(label="a-very-long-label-of-a-study-" * 5))
    assert max(map(len, seen(long, columns=columns))) < columns


def test_sixty_columns_hold_what_matters():
    lines = seen(study(spec=spec(label="photos_denoise-1121-2201")), columns=60)
    assert lines[0].startswith("photos_denoise-1121-2201   6 trials")
    assert lines[0].endswith("2:00 left of 10 min")
    assert of(lines, "best") == "2.00x [1.96, 2.04] within one run, not confirmed"


def test_a_trial_cannot_make_the_terminal_obey():
    assert one_line("\x1b[2Jgone\nnext\t.") == "\\u001b[2Jgone next ."


def test_wide_characters_and_marks_are_counted_as_a_terminal_does():
    assert len_of("模型") == 4
    assert len_of("e\u0301") == 1
    assert cut("模型模型模型", 7) == "模型..."
    assert cut("short", 5) == "short"
    assert fitted(Line("", "left", right="right"), 12)[1] == "left   right"


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    def isatty(self):
        raise ValueError("closed")


@pytest.mark.parametrize("is_live", [True, False])
def test_a_broken_pipe_ends_the_showing_and_never_the_search(is_live):
    progress = Progress(Broken(), live=is_live)
    progress.study_began(study())
    progress.trial_ended(study(), study().trials[0])
    progress.study_ended(study())
    progress.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_live_view_needs_a_terminal_that_somebody_watches():
    assert wants_live_view(Terminal(), {"TERM": "xterm"})
    assert not wants_live_view(Terminal(), {"TERM": "dumb"})
    assert not wants_live_view(Terminal(), {"TERM": "xterm", "CI": "true"})
    assert not wants_live_view(io.StringIO(), {"TERM": "xterm"})
    assert not wants_live_view(Broken(), {})


def test_drawing_waits_for_no_terminal():
    """A terminal that takes nothing (Ctrl-S) holds the drawing and not the search."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stream:
        progress = Progress(stream, live=None)
        progress._screen = Screen(stream, progress.view)
        progress._screen.start()
        progress.trial_started(study(), study().trials[0])
        progress.trial_ended(study(), study().trials[0])
        os.close(reader)
        progress.study_ended(study())


def test_a_view_that_fails_costs_the_view_alone(caplog):
    screen = Screen(io.StringIO(), lambda: [1 / 0])
    screen.start()
    screen.stop()
    assert "the live view ended" in caplog.text
    assert live_view._shown == []


def test_a_view_that_failed_leaves_warnings_and_lines_to_be_reported_plainly():
    """Also its own: what was put above a view that is gone would be seen by nobody."""
    stream = io.StringIO()
    reported = []
    watch = logging.Handler()
    watch.emit = lambda record: reported.append(say_above(record.getMessage()))
    live_view.log.addHandler(watch)
    progress = Progress(stream, live=False)
    progress._screen = Screen(stream, lambda: [1 / 0])
    try:
        progress._screen.start()
        progress._screen._thread.join(10)
    finally:
        live_view.log.removeHandler(watch)
    assert reported == [False]
    assert not say_above("warning: later")
    trial = next(t for t in study().trials if t.measurement is not None)
    progress.trial_ended(study(), trial)
    assert f"trial {trial.number}" in stream.getvalue()


def test_while_another_job_has_the_terminal_lines_are_plain_and_warnings_are_reported(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(Screen, "_is_watched", lambda _: False)
    progress = Progress(stream, live=True)
    progress.study_began(study())
    assert say_above("warning: MLflow cannot be reached")
    trial = next(t for t in study().trials if t.measurement is not None)
    progress.trial_ended(study(), trial)
    progress.study_ended(study())
    shown = stream.getvalue()
    assert "\x1b" not in shown
    assert "warning: MLflow cannot be reached" in shown
    assert f"trial {trial.number}" in shown


def test_a_signals_handler_waits_for_nothing_that_it_interrupted():
    """It may come while the main thread holds the lock of the event that wakes the drawing."""
    progress = Progress(io.StringIO(), live=False)
    progress._screen = Screen(io.StringIO(), progress.view)
    progress._screen.start()
    with progress._screen._wake._cond:
        progress.stopping("signal")
    progress.close()


def test_what_is_reported_meanwhile_stands_above_the_view():
    stream = io.StringIO()
    screen = Screen(stream, lambda: [Line("now", "busy")], colour=False)
    assert not say_above("warning: early")
    screen.start()
    assert say_above("warning: the disk is slow")
    screen.stop()
    drawn = left_of(stream.getvalue())
    assert drawn == ["warning: the disk is slow"]


def left_of(text):
    """What is left on the screen."""
    screen = terminal.Terminal(60, 24)
    screen.feed(text)
    return screen.lines()


def test_a_narrow_budget_does_not_divide_by_zero():
    assert seen(study(spec=spec(budget=Budget(seconds=0.0))))


def test_what_changes_the_training_is_never_shown_as_the_best():
    batch = Dimension(knob="batch_size", values=(32, 64), own=32, effect=Effect.TRAINING)
    wild = measured(2, Config({"batch_size": 64}), 220.0)
    begun = study(
        trials=(*study().trials[:2], wild),
        space=replace(SPACE, dimensions={**SPACE.dimensions, "batch_size": batch}),
    )
    assert "2.20x" not in of(seen(begun), "best")
    line = progress_line(begun, wild)
    assert "2.20x  220 samples/s | changes the training" in line
    assert "best 2.20x" not in line
