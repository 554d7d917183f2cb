"""`autotune.tune`, `load` and `resume`: searches from Python, for notebooks and pipelines.

The root of the package exports it lazily; nothing inside imports it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from autotune.driver.result import result_data
from autotune.driver.spec import SearchOptions, build_spec
from autotune.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    EXIT_YES,
    StoreError,
    UsageError,
)
from autotune.inspection.command_line import Command, read_command

if TYPE_CHECKING:
    from autotune.answer.answer import Answer, Recommendation
    from autotune.driver.tune import SearchEnd
    from autotune.model.config import Value
    from autotune.model.measurement import Estimate, Measurement
    from autotune.model.study import Study
    from autotune.report.listener import Listener

    Objective = Callable[[Measurement], float]

_REASONS = {
    EXIT_YES: "faster",
    EXIT_INCONCLUSIVE: "inconclusive",
    EXIT_INTERRUPTED: "interrupted",
    EXIT_STOPPED: "stopped",
    UsageError.exit_code: "script_changed",
}

# The host program configures logging; without a handler Python would print tracebacks.
logging.getLogger("autotune").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, repr=False)
class Tuned:
    """The result of a search. In a notebook it shows the answer.

    Args:
        end: How the search ended.
    """

    end: SearchEnd

    @property
    def study(self) -> Study:
        """The study: its specification and every trial with its outcome."""
        return self.end.study

    @property
    def answer(self) -> Answer:
        """Picks, Pareto front, control and caveats."""
        assert self.end.answer is not None
        return self.end.answer

    @property
    def is_better(self) -> bool:
        """Whether a configuration is confirmed to be faster than the unchanged script."""
        return self.answer.is_better

    @property
    def best(self) -> Recommendation:
        """The pick that `autotune apply` uses; the unchanged script if nothing is faster."""
        return self.answer.best

    @property
    def safe(self) -> Recommendation:
        """The fastest configuration that leaves the arithmetic unchanged."""
        return self.answer.safe

    @property
    def fastest(self) -> Recommendation | None:
        """The configuration that changes the training and reaches the same loss soonest; None without one."""
        return self.answer.fastest

    @property
    def outcome(self) -> str:
        """``faster``, ``nothing_faster`` or ``inconclusive``."""
        return self.answer.outcome.value

    @property
    def likely(self) -> Recommendation | None:
        """The best candidate of an inconclusive search, not confirmed; None without one."""
        return self.answer.likely

    @property
    def speedup(self) -> Estimate:
        """Speed-up of `best` over the unchanged script: value, interval and confidence."""
        return self.answer.best.speedup

    @property
    def path(self) -> Path:
        """Path of the best.yaml that was written."""
        return Path(self.study.spec.out)

    @property
    def reason(self) -> str:
        """Reason for the end of the search.

        ``faster``, ``nothing_faster``, ``inconclusive``, ``interrupted`` (Ctrl-C or a listener),
        ``stopped``, or ``script_changed``: the script was edited during the search; the result holds for
        the old version.
        """
        return _REASONS.get(self.end.exit_code, "nothing_faster")

    @property
    def exit_code(self) -> int:
        """Exit code of the command line for this result."""
        return self.end.exit_code

    @property
    def trials(self) -> Any:
        """A pandas DataFrame with a row per finished trial; pandas must be installed.

        Columns: ``trial``, ``stage``, ``state`` (``measured`` or the kind of failure), ``config``, one per
        knob, ``throughput`` in ``unit``, ``speedup`` (relative to the baseline, a single run),
        ``peak_memory_gib``, ``data_wait_frac``, ``disturbed``, ``seconds``.
        """
        from autotune.report.html.notebook import frame

        return frame(self.study)

    def plot(self) -> Any:
        """Return a matplotlib figure: the speed of every measured trial relative to the baseline."""
        from autotune.report.html.notebook import figure

        return figure(self.study, self.answer)

    def select(self, objective: Objective, *, out: str | os.PathLike[str] = "") -> Tuned:
        """Select `best` and `safe` again by an objective of your own; nothing is run.

        Of the configurations that are confirmed to be faster, the one with the largest mean over its
        confirmation runs is selected::

            def samples_per_gib(measurement):
                return measurement.throughput.value / measurement.memory.peak_bytes * 2**30

            autotune.load().select(samples_per_gib, out="lean.yaml")

        Args:
            objective: From an `autotune.Measurement` to a number; larger is better.
            out: File for `autotune apply`; empty writes none.
        """
        from autotune.answer.pick import answer
        from autotune.driver.result import changes_of
        from autotune.export.best_config import write_best

        study, found = self.study, answer(self.study, score=objective)
        if out:
            path = Path(out).absolute()
            study = replace(study, spec=replace(study.spec, out=str(path)))
            write_best(path, study, found, changes_of(study))
        return Tuned(replace(self.end, study=study, answer=found))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ``autotune.result/v1``: the object of ``autotune search --json``."""
        return result_data(self.end, self.end.exit_code)

    def __str__(self) -> str:
        from autotune.report.text.answer_screen import answer_screen

        end = self.end
        return answer_screen(
            self.study, self.answer, out=self.study.spec.out, links=end.links, unsent=end.unsent
        )

    def _repr_html_(self) -> str:
        from autotune.report.html.notebook import card

        return card(self.study, self.answer, out=self.study.spec.out)

    def __repr__(self) -> str:
        return f"<Tuned {self.study.spec.label}: {self.answer.sentence or self.reason}>"


def tune(
    script: str | os.PathLike[str] = "",
    *,
    budget: str | float = "10m",
    args: Iterable[object] = (),
    command: str | Sequence[str] = (),
    python: str | os.PathLike[str] = "",
    space: str | os.PathLike[str] = "auto",
    set: Mapping[str, Value | Sequence[Value]] | None = None,  # noqa: A002 (the option's name)
    fix: Mapping[str, Value] | None = None,
    knob: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    max_memory: str | int = "",
    effective_batch: str = "explore",
    run_steps: int | None = None,
    price_per_hour: float | None = None,
    objective: str | Objective = "throughput",
    profile: bool = False,
    trials: int | None = None,
    seed: int = 0,
    driver: str = "inline",
    address: str = "",
    accelerator_type: str = "",
    concurrency: int = 0,
    sampler: str = "staged",
    transfer: str = "same-script",
    start: str = "auto",
    wait_for_quiet: str = "",
    wait: str = "",
    share: bool = False,
    tracking_uri: str = "",
    experiment: str = "",
    mlflow_tag: str | Sequence[str] = (),
    mlflow_parent_run: str = "",
    out: str | os.PathLike[str] = "best.yaml",
    label: str = "",
    output_arg: str | Sequence[str] = (),
    keep_loggers: bool = False,
    progress: bool | TextIO | Listener | Sequence[Listener] = False,
    **renamed: Any,
) -> Tuned:
    """Search the fastest configuration of a training script; return when the budget is spent at the latest.

    The script runs in processes of its own, as under ``autotune search``; it is not imported here. The
    call blocks, in any thread and inside a running event loop; with ``driver="ray"`` in the main thread only.
    In the main thread a first Ctrl-C ends the search with the best result so far, and a second one raises
    KeyboardInterrupt. Settings of pyproject.toml and ``AUTOTUNE_*`` variables of options are not used.

    Args:
        script: The training script, unmodified.
        budget: Wall time for everything: ``"30m"``, or seconds.
        args: Arguments of the script: a list, or one text as on a command line.
        command: Instead of `script` and `args`: a whole command, ``"python -m package.train --lr 1e-3"``.
        python: Interpreter of the script's environment; see `autotune search --help`.
        space: Search space: a preset, ``auto``, or a file.
        set: Values to search, by knob: ``{"num_workers": [0, 2, 4]}``, or one value.
        fix: Values to pin, by knob: ``{"precision": "bf16"}``.
        knob: Knobs to search: one name or several; empty for all.
        allow: Knobs to permit that change the training, or may do harm later than a search can see.
        max_memory: Upper bound on peak memory: ``"6GiB"``, ``"80%"``, or bytes.
        effective_batch: ``explore``, ``keep`` or ``LO..HI``.
        run_steps: Optimizer steps of the real run; compile time is charged to it.
        price_per_hour: Price of the machine; adds the cost of a million samples to the answer.
        objective: ``throughput``, ``energy`` (the least per sample of all that is faster), ``cost``, or a
            function from an `autotune.Measurement` to a number. With a function the search explores for
            throughput, and the picks are selected by it: see `Tuned.select`.
        profile: Store a profiler trace of the script and of the winner in the study's folder.
        trials: Upper bound on the number of trials.
        seed: Seed of the search.
        driver: ``inline`` runs trials in sequence from this process; ``ray`` uses Ray Tune, if this program
            is not connected to Ray.
        address: An existing Ray cluster.
        accelerator_type: Nodes of that cluster with these accelerators only, by Ray's name: ``A100``.
        concurrency: Trials at a time under Ray; 0 lets the driver choose.
        sampler: Method that proposes configurations: ``staged``, ``tpe``, ``nsga2``, ``random``,
            ``brute``, ``coordinate``; see docs/search.md.
        transfer: Earlier studies to start from: ``same-script`` or ``off``.
        start: How screening trials start. ``auto``: forked from a process that has imported PyTorch, where
            that is safe. ``fork``: the same, with a note where it is not safe. ``cold``: each in a new
            interpreter. See docs/search.md.
        wait_for_quiet: Longest wait for other processes to end, such as ``10m``; empty for no wait.
        wait: Longest wait for another search on the same CPUs or accelerators, such as ``30m``; empty for
            twice the budget.
        share: Measure beside that search after `wait`; without `wait` at once.
        tracking_uri: MLflow store; empty for the local one.
        experiment: MLflow experiment.
        mlflow_tag: Tags of the study's MLflow run, ``"team=vision"``.
        mlflow_parent_run: Id of the MLflow run below which the study's run is nested. Empty: the program's
            active MLflow run, if any, in its tracking store.
        out: Path of best.yaml.
        label: Name of the study.
        output_arg: Options of the script that name its output folder.
        keep_loggers: Keep the script's experiment trackers on during trials.
        progress: True for lines on stderr, a stream, a listener or several; False for no output.
        renamed: ``sets``, ``fixes``, ``knobs`` and ``output_args``: deprecated names of `set`, `fix`, `knob`
            and `output_arg`.

    Raises:
        UsageError: The request cannot be carried out; nothing was run.
        ScriptError: The unchanged script fails.
        NothingFeasible: No configuration fits into `max_memory`.
        StoreError, BackendError: The study, the machine or a service failed. The base class of all errors
            is `AutotuneError`.
    """
    from autotune.driver.tune import run_search

    old = _renamed(renamed)
    set, fix = old.get("sets", set), old.get("fixes", fix)  # noqa: A001 (the option's name)
    knob, output_arg = old.get("knobs", knob), old.get("output_args", output_arg)
    for name, value in (("trials", trials), ("run_steps", run_steps)):
        _check(name, value, (Integral,), "a whole number", may_be_none=True)
    for name, value in (("seed", seed), ("concurrency", concurrency)):
        _check(name, value, (Integral,), "a whole number")
    _check("budget", budget, (str, Real), 'a duration such as "30m", or a number of seconds')
    _check("price_per_hour", price_per_hour, (Real,), "a number", may_be_none=True)
    _check("args", args, (str, Iterable), "a list of words, or one command line")
    _check("command", command, (str, Iterable), "a list of words, or one command line")
    for name, value in (("knob", knob), ("allow", allow), ("output_arg", output_arg)):
        _check(name, value, (str, Iterable), "a name, or a list of names")
    tracking_uri, parent_run = _mlflow_place(tracking_uri, experiment, mlflow_parent_run)
    scored = objective if callable(objective) else None
    options = SearchOptions(
        budget=budget if isinstance(budget, str) else f"{budget:f}s",
        space=os.fspath(space),
        sets=_narrowed("set", set or {}),
        fixes=_narrowed("fix", fix or {}),
        knobs=_names(knob),
        allow=_names(allow),
        max_memory=max_memory if isinstance(max_memory, str) else f"{max_memory}B",
        effective_batch=effective_batch,
        run_steps=run_steps,
        price_per_hour=price_per_hour,
        objective=objective if isinstance(objective, str) else "throughput",
        profile=profile,
        trials=trials,
        seed=seed,
        driver=driver,
        address=address,
        accelerator_type=accelerator_type,
        concurrency=concurrency,
        sampler=sampler,
        transfer=transfer,
        start=start,
        wait_for_quiet=wait_for_quiet,
        wait=wait,
        share=share,
        tracking_uri=tracking_uri,
        experiment=experiment,
        out=os.fspath(out),
        label=label,
        output_args=_names(output_arg),
        mlflow_tags=_names(mlflow_tag),
        mlflow_parent_run=parent_run,
        keep_loggers=keep_loggers,
    )
    run = _command(os.fspath(script), args, command, os.fspath(python))
    spec = build_spec(run, options)
    _check_ray(driver)
    with ExitStack() as closers:
        listeners = _listeners(progress, run.notes, closers)
        found = Tuned(run_search(spec, listeners=listeners, owns_process=False))
    return found if scored is None else found.select(scored, out=spec.out)


def load(name: str | os.PathLike[str] = "") -> Tuned:
    """Return the result of a search on this machine from its journal; nothing is run.

    Args:
        name: Name or id of a study, or its beginning, or the study's folder; empty for the latest.

    Raises:
        StudyNotFound: No study, or more than one, has that name.
        StoreError: The study cannot be read, or has no answer yet.
    """
    from autotune.driver.exit_status import answer_or_none, exit_code
    from autotune.driver.rebuild_space import space_of
    from autotune.driver.tune import SearchEnd
    from autotune.store.fold import fold
    from autotune.store.journal import Journal
    from autotune.store.paths import JOURNAL_FILE, find_study

    path = find_study(os.fspath(name) or None, searches=True)
    with Journal.read(path / JOURNAL_FILE) as journal:
        study = fold(journal.entries(), build=space_of)
        unsent = journal.unsent("mlflow")
    answer = answer_or_none(study)
    if answer is None:
        raise StoreError(
            f"study {study.spec.label} has no answer: the unchanged script was not measured",
            hint=f"autotune logs {study.spec.label}",
        )
    code = exit_code(study, answer)
    return Tuned(SearchEnd(study=study, answer=answer, exit_code=code, unsent=unsent, study_dir=path))


def resume(
    name: str | os.PathLike[str] = "",
    *,
    budget: str | float | None = None,
    trials: int | None = None,
    progress: bool | TextIO | Listener | Sequence[Listener] = False,
) -> Tuned:
    """Continue a search that was stopped or inconclusive; no finished trial is run again.

    Args:
        name: As for `load`.
        budget: Wall time from now: ``"30m"``, or seconds; None for what is left.
        trials: Further trials at most; None keeps the limit of the search.
        progress: As for `tune`.

    Raises:
        AutotuneError: As for `tune`.
    """
    from autotune.driver.spec import budget_s
    from autotune.driver.tune import resume_search
    from autotune.store.paths import find_study

    path = find_study(os.fspath(name) or None, searches=True)
    seconds = None if budget is None else budget_s(budget if isinstance(budget, str) else f"{budget:f}s")
    with ExitStack() as closers:
        listeners = _listeners(progress, (), closers)
        end = resume_search(path, budget_s=seconds, trials=trials, listeners=listeners, owns_process=False)
        return Tuned(end)


_OLD_NAMES = {"sets": "set", "fixes": "fix", "knobs": "knob", "output_args": "output_arg"}


def _renamed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments with deprecated names, with a warning each.

    Raises:
        TypeError: An argument has no such name.
    """
    for name in given:
        if name not in _OLD_NAMES:
            raise TypeError(f"tune() got an unexpected keyword argument {name!r}")
        warnings.warn(f"{name} is now called {_OLD_NAMES[name]}", DeprecationWarning, stacklevel=3)
    return given


def _check(
    name: str, value: object, kinds: tuple[type, ...], expected: str, *, may_be_none: bool = False
) -> None:
    """Check the type of an argument, with an error as on the command line.

    Raises:
        UsageError: The value has another type.
    """
    if value is None and may_be_none:
        return
    # A bool is an int in Python; where a list or a string is expected it is neither.
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise UsageError(f"{name} cannot be {value!r}", hint=f"it is {expected}")


def _command(script: str, args: str | Iterable[object], command: str | Sequence[str], python: str) -> Command:
    words = _words(command) if isinstance(command, str) else list(command)
    given = _words(args) if isinstance(args, str) else [str(arg) for arg in args]
    if script and words:
        raise UsageError("both a script and a command are given", hint="leave one of them out")
    if words and given:
        raise UsageError(
            "both a command and args are given", hint="put the arguments into the command, or name the script"
        )
    if not script and not words:
        raise UsageError("no script is given", hint='autotune.tune("train.py", budget="30m")')
    return read_command(words or given, script=script, python=python)


def _words(text: str) -> list[str]:
    """Split a text as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        hint = "pass them as a list of words"
        raise UsageError(f"a command or its arguments cannot be read: {error}", hint=hint) from error


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def _narrowed(what: str, given: object) -> tuple[str, ...]:
    """Return values by knob in the notation of the command line: ``num_workers=0,2``."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} is not a mapping of knobs to values", hint=f'{what}={{"num_workers": 4}}')
    pairs = cast("Mapping[object, object]", given)
    return tuple(f"{knob}={','.join(_texts(knob, value))}" for knob, value in pairs.items())


def _texts(knob: object, value: object) -> list[str]:
    """Return the texts of one value or several; a text is one value."""
    plain = isinstance(value, (bool, int, float, str))
    if not plain and not isinstance(value, Iterable):
        hint = "a value is text, a number, true or false; several values are a list"
        raise UsageError(f"{knob} cannot be {value!r}", hint=hint)
    texts = [_text(each) for each in ([value] if plain else cast("Iterable[object]", value))]
    if parted := next((text for text in texts if "," in text), ""):
        raise UsageError(
            f'{knob}: the value "{parted}" contains a comma, which separates values here',
            hint="write it into a space file, and pass that: space=...",
        )
    return texts


def _mlflow_place(tracking_uri: str, experiment: str, parent_run: str) -> tuple[str, str]:
    """Return tracking store and parent run; those of the program's active MLflow run if neither is given."""
    mlflow: Any = sys.modules.get("mlflow")
    if parent_run or tracking_uri or experiment or mlflow is None:
        return tracking_uri, parent_run
    active = getattr(mlflow, "active_run", lambda: None)()
    return (str(mlflow.get_tracking_uri()), str(active.info.run_id)) if active is not None else ("", "")


def _check_ray(driver: str) -> None:
    """Check that Ray Tune can drive a search in this program.

    Raises:
        UsageError: Not in the main thread, or the program is connected to Ray.
    """
    if driver != "ray":
        return
    alone = "leave driver out: trials then run in sequence from this process"
    if threading.current_thread() is not threading.main_thread():
        raise UsageError('driver="ray" works in the main thread only', hint=alone)
    ray: Any = sys.modules.get("ray")
    if getattr(ray, "is_initialized", bool)():
        raise UsageError(
            "this program is already connected to Ray, and a search needs its own",
            hint=f"{alone}; or call ray.shutdown() before",
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listeners(
    progress: bool | TextIO | Listener | Sequence[Listener], notes: Sequence[str], closers: ExitStack
) -> Sequence[Listener]:
    from autotune.report.listener import Listener
    from autotune.report.terminal.live_view import Progress

    if progress is False:
        return ()
    if isinstance(progress, Listener):
        return (progress,)
    if isinstance(progress, Sequence):
        return progress
    stream = sys.stderr if progress is True else progress
    for note in notes:
        stream.write(f"{note}\n")
    shown = Progress(stream)
    closers.callback(shown.close)
    return (shown,)
