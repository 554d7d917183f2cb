"""Result of a search on the command line: the screen or the JSON object, and the exit code."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from autotune.cli import BEGAN_S
from autotune.cli.open_study import elsewhere
from autotune.driver.profiles import profile_lines
from autotune.driver.result import RESULT_SCHEMA, advice_lines, result_data
from autotune.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_NO,
    EXIT_STOPPED,
    EXIT_YES,
    AutotuneError,
    UsageError,
    notes_of,
)
from autotune.report.terminal.async_writer import EXIT_S, AsyncWriter
from autotune.shortage import shortage
from autotune.text.redact import redact, redact_args, redact_data

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from autotune.driver.tune import DryRun, LastWords, SearchEnd
    from autotune.model.study import SpaceRequest, StudySpec

PLAN_SCHEMA = "autotune.plan/v1"
INTERPRETER_S = 0.1
"""Start of Python up to the first line of autotune; measured at 0.03 to 0.1 s."""


def print_json(data: dict[str, Any], *, line: bool = False) -> None:
    """Print a strict JSON object without secrets on stdout, in a single line with `line`."""
    indent, data = None if line else 2, redact_data(data)
    text = json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(data, indent=indent, allow_nan=False)
    if line:
        # After the events, which may wait for a reader. Without a reader the result is lost, but not the exit
        # code.
        with suppress(BrokenPipeError):
            AsyncWriter.of(sys.stdout).last(text + "\n")
    else:
        sys.stdout.write(text + "\n")


def print_error(error: AutotuneError, *, line: bool = False) -> None:
    """Print the object of an error, once, with all results of the search that it ended."""
    if error.is_reported:
        return
    data: dict[str, Any] = {
        "kind": type(error).__name__,
        "message": _without_secrets(error.message),
        "hint": _without_secrets(error.hint),
    }
    if notes := notes_of(error):
        data["notes"] = [_without_secrets(note) for note in notes]
    found = {} if error.end is None else result_data(error.end, error.exit_code)
    print_json({**found, "schema": RESULT_SCHEMA, "exit": error.exit_code, "error": data}, line=line)
    error.is_reported = True


def _without_secrets(text: str) -> str:
    return redact(text, free=True)


def say_error(error: AutotuneError) -> None:
    """Print an error for users on stderr, after the text that is queued there."""
    lines = [("error", error.message), *(("note", note) for note in notes_of(error))]
    lines += [("hint", error.hint)] if error.hint else []
    stderr = AsyncWriter.of(sys.stderr)
    stderr.put("".join(f"{what}: {_without_secrets(text)}\n" for what, text in lines))
    # The process may be killed right after this.
    stderr.drain(EXIT_S)


def root_cause(error: AutotuneError) -> AutotuneError:
    """Return the shortage on this machine that caused a usage error, or the error itself."""
    lacks = shortage(error) if isinstance(error, UsageError) else None
    return error if lacks is None else lacks


@contextmanager
def guarded(*, as_json: bool, as_lines: bool = False) -> Generator[None]:
    """Print an `AutotuneError` in the block as a JSON object too, if JSON is requested."""
    try:
        yield
    except AutotuneError as error:
        cause = root_cause(error)
        if as_json or as_lines:
            print_error(cause, line=as_lines)
        if cause is error:
            raise
        raise cause from error


def head_start_s() -> float:
    """Return the seconds since the command was entered, which count towards the budget."""
    return INTERPRETER_S + time.monotonic() - BEGAN_S


def shown_path(path: str) -> str:
    """Return a path relative to the current folder if it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def terminal_columns() -> int:
    """Return the columns of the terminal on stdout, or 0 for a file or a program, which get whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def searched(end: SearchEnd, *, as_json: bool, exit_zero: bool, as_lines: bool = False) -> int:
    """Print the answer of a search and give its exit code."""
    from autotune.report.text.answer_screen import INDENT, answer_screen
    from autotune.report.text.terminal_text import stopped_screen, wrapped

    without_gain = end.exit_code in (EXIT_NO, EXIT_INCONCLUSIVE)
    code = EXIT_YES if exit_zero and without_gain else end.exit_code
    spec = end.study.spec
    if as_json or as_lines:
        print_json(result_data(end, code), line=as_lines)
    elif end.answer is None:
        sys.stdout.write(stopped_screen(end.study, reason="the search ended without an answer"))
    else:
        text = answer_screen(
            end.study,
            end.answer,
            out=shown_path(spec.out) if spec.out else "",
            folder=elsewhere(end.study),
            links=end.links,
            unsent=end.unsent,
            advice=advice_lines(end.study),
        )
        sys.stdout.write(wrapped(redact(text), terminal_columns()))
        for line in profile_lines(end.study, end.study_dir):
            print(f"  {'profile':<{INDENT - 2}}{line}")
        if code in (EXIT_STOPPED, EXIT_INTERRUPTED) and not end.answer.resume:
            print(f"  {'continue':<{INDENT - 2}}autotune resume {spec.label}")
    return code


def last_words(
    *, close: Callable[[], None], as_json: bool, exit_zero: bool, as_lines: bool = False
) -> LastWords:
    """Return a function that prints the end of a search that hangs; for `autotune.driver.tune`.

    Args:
        close: Ends the display of progress.
        as_json: Print one object.
        exit_zero: The object contains exit code 0 if no gain is claimed.
        as_lines: Print it in a single line.
    """
    # During a hang, Ray's loop has replaced the stream.
    out = sys.stdout

    def say(ended: SearchEnd | AutotuneError) -> None:
        close()
        with redirect_stdout(out):
            if not isinstance(ended, AutotuneError):
                searched(ended, as_json=as_json, exit_zero=exit_zero, as_lines=as_lines)
            else:
                say_error(ended)
                if as_json or as_lines:
                    print_error(ended, line=as_lines)
            out.flush()
        sys.stderr.flush()

    return say


def space_text(request: SpaceRequest) -> str:
    """Return the name of the search space, and whether it is settled."""
    if not request.reason:
        return f"space {request.name}"
    return f"space auto: {request.name} is likely, because {request.reason}; the first run decides"


def _unread(plan: DryRun) -> set[str]:
    """Return the knobs that the user declares, whose effect is not read back."""
    return {spec.name for spec in plan.request.declared}


def say_plan(plan: DryRun, *, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Print what a search would do.

    Args:
        plan: Plan of the search.
        as_json: Print one object instead of text.
        notes: Sentences about the command and its settings.
    """
    spec, space = plan.spec, plan.space
    knobs = {
        name: {"values": list(d.values), "effect": d.effect.name, "how": plan.ways.get(name, "")}
        for name, d in space.dimensions.items()
    }
    if as_json:
        print_json(
            {
                "schema": PLAN_SCHEMA,
                "script": spec.script,
                "args": redact_args(spec.args),
                "module": spec.module,
                "python": spec.python,
                "notes": list(notes),
                "budget_s": spec.budget.seconds,
                "driver": spec.driver,
                "space": {"name": plan.request.name, "reason": plan.request.reason},
                "knobs": knobs,
                "refused": dict(plan.refusals),
                "not_here": list(plan.not_here),
                "configurations_at_most": space.size_bound(),
                "course": _course_data(spec),
                "exit": EXIT_YES,
            }
        )
        return EXIT_YES
    sys.stdout.write("".join(f"{note}\n" for note in notes) + _plan_text(plan, knobs))
    return EXIT_YES


def _plan_text(plan: DryRun, knobs: dict[str, Any]) -> str:
    from autotune.model.config import value_text

    refusals, size, own = dict(plan.refusals), plan.space.size_bound(), _unread(plan)
    width = max((len(name) for name in [*knobs, *refusals]), default=0)
    lines = [f"plan of study {plan.spec.label}; nothing is run", "", space_text(plan.request), ""]
    lines += ["searched, as far as the source shows:"]
    lines += [
        f"  {name:<{width}}  {', '.join(value_text(v) for v in row['values']) or 'values'}"
        f"   {row['effect']}   by {row['how'] or 'found by the first run'}"
        + (", delivered, effect not read" if name in own else "")
        for name, row in knobs.items()
    ]
    if refusals:
        lines += ["", "not used:"]
        lines += [f"  {name:<{width}}  {reason}" for name, reason in refusals.items()]
    if plan.not_here:
        lines += ["", f"not applicable here: {', '.join(plan.not_here)}"]
    lines += ["", f"at most {size} configurations; the first run of your script may narrow or widen this"]
    lines += ["", *_course_lines(plan.spec)]
    return "\n".join(lines) + "\n"


def _course_lines(spec: StudySpec) -> list[str]:
    """Return the order of a search and the shares of its budget; the duration of a run is unknown so far."""
    from autotune.model.trial import Stage
    from autotune.report.view.summary import duration_text, plural
    from autotune.search.plan import course
    from autotune.search.samplers.registry import PLANNER

    known = course(spec)
    refining = "the most promising ones" if spec.sampler == PLANNER else f"draws of {spec.sampler}"
    words = {
        Stage.BASELINE: f"your unchanged script ({plural(known.baselines, 'run')})",
        Stage.INITIAL: "start points and single changes",
        Stage.REFINE: refining,
        Stage.CONFIRM: "confirmation in pairs",
        Stage.ABLATE: "ablation of the winner if time allows",
    }
    kept = (
        f"once a candidate is faster, {known.cycles} rounds of script and finalists are reserved, "
        f"up to {known.more_cycles} rounds within {duration_text(known.more_cycles_s)}"
    )
    whole, first = duration_text(spec.budget.seconds), duration_text(known.first_run_s)
    lines = [
        f"order   {', '.join(words[stage] for stage in known.stages)}",
        f"budget  {whole}; the first run ends after {first} at most; {kept}; the rest explores",
    ]
    if known.screened is not None:
        lines.append(f"trials  {spec.budget.trials}: at most {known.screened} before confirmation")
    return lines


def _course_data(spec: StudySpec) -> dict[str, Any]:
    from autotune.search.plan import course

    known = course(spec)
    return {
        "stages": [stage.value for stage in known.stages],
        "baseline_runs": known.baselines,
        "first_run_s_at_most": round(known.first_run_s, 3),
        "rounds_kept": known.cycles,
        "rounds_kept_at_most": known.more_cycles,
        "more_rounds_within_s": round(known.more_cycles_s, 3),
        "trials_before_confirming_at_most": known.screened,
    }
