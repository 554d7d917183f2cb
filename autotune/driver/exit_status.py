"""Exit code of a search, or the error that explains a missing answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.answer.answer import SearchOutcome
from autotune.answer.pick import answer
from autotune.answer.unmeasured import budget_wanted, ended_by_budget, other_libraries, ran_s
from autotune.compare.finalists import fastest_fitting
from autotune.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_NO,
    EXIT_STOPPED,
    EXIT_YES,
    AutotuneError,
    BackendError,
    DiskFull,
    NothingFeasible,
    ScriptError,
    UsageError,
)
from autotune.launch.runner import NOT_BEGUN, REMEDY
from autotune.launch.workspace.isolation_failures import BOTH_MODES
from autotune.model.study import SCRIPT_CHANGED
from autotune.model.supported import UNSUPPORTED
from autotune.model.trial import FailureKind, Stage
from autotune.report.view.rerun_command import search_command
from autotune.report.view.summary import user_command

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.model.trial import Trial


_CODES: Final = {
    SearchOutcome.FASTER: EXIT_YES,
    SearchOutcome.NOTHING_FASTER: EXIT_NO,
    SearchOutcome.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}
_TAKEN: Final = {
    FailureKind.CONTENDED: (
        "wait until other programs end; nvidia-smi lists processes on the GPU, and "
        "CUDA_VISIBLE_DEVICES=1 selects another one"
    ),
    FailureKind.THROTTLED: "nvidia-smi -q -d PERFORMANCE shows what limits the clocks: heat or power",
}
"""Accelerator failures that are not the script's fault -> remedy."""


_NO_INPUT: Final = (
    "it reads standard input, which cannot be repeated for every run: redirect it from a file "
    "(autotune ... < data.txt), or pass the file by an option of the script"
)


class StoppedEarly(AutotuneError):
    """The user stopped the search before there was a baseline; it can be resumed."""

    exit_code = EXIT_INTERRUPTED


class StoppedBySignal(StoppedEarly):
    """A scheduler's signal stopped it likewise."""

    exit_code = EXIT_STOPPED


def answer_or_none(study: Study) -> Answer | None:
    """Return the present answer; None if the unchanged script was never measured."""
    if not any(trial.measurement for trial in study.baseline):
        return None
    return answer(study)


def exit_code(study: Study, found: Answer) -> int:
    """Return 0 for a gain, 1 if nothing is faster, 8 for an inconclusive search, or how it was stopped.

    A search whose script was edited meanwhile ends with 2: its answer holds for the old version.

    Raises:
        NothingFeasible: No config fits into the user's memory limit, not even the unchanged script.
    """
    if study.stopped == "interrupted":
        return EXIT_INTERRUPTED
    if study.stopped == "signal":
        return EXIT_STOPPED
    if study.stopped == SCRIPT_CHANGED:
        return UsageError.exit_code
    bound = study.spec.max_memory_bytes
    needs_less = bound is not None and (found.baseline_peak_bytes or 0) > bound
    if bound is not None and needs_less and not found.is_better and fastest_fitting(study) is None:
        script = Path(study.spec.script).name
        message = f"no configuration fits into {bound / 2**30:.2f} GiB, not even the unchanged {script}"
        raise NothingFeasible(message, hint="raise --max-memory")
    return _CODES[found.outcome]


def search_again(study: Study) -> str:
    """Return the command of this search, or of one with its script where the space cannot be named."""
    return search_command(study) or f"autotune search -- {user_command(study)}"


def why_nothing(study: Study) -> AutotuneError:
    """Return the error for a study without a measured baseline: cause, last output lines, remedy."""
    script = Path(study.spec.script).name
    failed = next((t for t in study.finished(Stage.BASELINE) if t.failure is not None), None)
    if failed is None or failed.failure is None:
        if study.stopped in ("interrupted", "signal"):
            message = f"the search of {script} was stopped before the baseline was measured"
            kind = StoppedBySignal if study.stopped == "signal" else StoppedEarly
            return kind(message, hint=f"go on: autotune resume {study.spec.label}")
        if study.stopped == SCRIPT_CHANGED:
            message = f"{script} was changed before it was measured once"
            return UsageError(message, hint=f"search again: {search_again(study)}")
        if study.stopped == "finished":
            return _budget_too_small(study, study.spec.budget.seconds)
        message = f"{script} ran, but no step could be measured"
        return ScriptError(message, hint=_hint_for(study, None))
    tail = str(failed.failure.evidence.get("log_tail", ""))
    again = f"autotune resume {study.spec.label}"
    if failed.failure.kind is FailureKind.DISK:
        return DiskFull(failed.failure.message, hint=f"make room there, then: {again}")
    if failed.failure.evidence.get("error") == UNSUPPORTED:
        hint = "name another interpreter: --python PATH"
        return BackendError(str(failed.failure.evidence.get("traceback", "")), hint=hint)
    if failed.failure.kind in _TAKEN:
        message = f"{script} could not be measured: {failed.failure.message}"
        return BackendError(message, hint=_TAKEN[failed.failure.kind])
    if NOT_BEGUN in failed.failure.evidence:
        remedy = str(failed.failure.evidence.get(REMEDY, "mend that"))
        return BackendError(failed.failure.message, hint=f"{remedy}; then: {again}")
    if ended_by_budget(study, failed):
        seconds = ran_s(failed)
        return _budget_too_small(study, seconds, f"one run takes more than {seconds:.0f} s here", tail)
    is_unmeasured = failed.failure.kind in (FailureKind.NO_METRIC, FailureKind.WARMUP_SHORT)
    is_unmeasured |= _reads_input(study) and not failed.failure.evidence.get("steps")
    what = "could not be measured" if is_unmeasured else "fails unchanged"
    if elsewhere := failed.failure.evidence.get(BOTH_MODES):
        what = f"could not be run under an overlay ({elsewhere}), nor in redirect mode"
    message = f"{script} {what}: {failed.failure.message}"
    return ScriptError(message + (f"\n{tail}" if tail else ""), hint=_hint_for(study, failed))


def _budget_too_small(study: Study, seconds: float, why: str = "", tail: str = "") -> UsageError:
    """Return the error for a budget too small for one run of the script, with a sufficient one.

    Args:
        study: Study without a measured baseline.
        seconds: Time that was not enough for a run.
        why: Known facts about the length of a run, as a clause.
        tail: The last lines of its output.
    """
    message = (
        f"a budget of {study.spec.budget.seconds:.0f} s ended before {study.spec.title} was measured once"
    )
    text = "\n".join(filter(None, ("; ".join(filter(None, (message, why))), tail)))
    return UsageError(text, hint=f"give more time: --budget {budget_wanted(seconds)}")


def _reads_input(study: Study) -> bool:
    """Return whether the script reads standard input, which is empty in a trial unless it is a file."""
    return study.facts is not None and "stdin" in study.facts.script.hazards and not study.spec.stdin


def _hint_for(study: Study, trial: Trial | None) -> str:
    if trial is not None and trial.failure is not None:
        kind = trial.failure.kind
        if _reads_input(study) and not trial.failure.evidence.get("steps"):
            return _NO_INPUT
        found = other_libraries(study)
        hangs = kind.family.value == "hang"
        if found and trial.failure.evidence.get("steps") == 0 and (hangs or kind is FailureKind.NO_METRIC):
            called = "autotune.step(samples=..., loss=...)"
            return f"with {' and '.join(found)} the script must report each step itself: {called}"
        if hangs:
            return "a trial needs to start and make some steps within the budget; give a longer --budget"
        if kind is FailureKind.NO_METRIC and "error" in trial.failure.evidence:
            return ""  # the process has reported why it had no step
        if kind in (FailureKind.NO_METRIC, FailureKind.WARMUP_SHORT):
            return "give it more epochs or steps, so that a steady part can be measured"
        if "the following arguments are required" in trial.failure.message:
            return "type the script's own arguments at the end of the command, after --"
    return "run the script by itself first"
