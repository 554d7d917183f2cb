"""Repeats: which runs do not count, and are run again."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.compare.disturbances import NEIGHBOUR, OTHERS, crowds
from autotune.model.trial import Failure, FailureKind, Family, Measurement, Stage, StartMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.driver.loop.fork_trust import ForkTrust
    from autotune.launch.runner import TrialResult
    from autotune.model.study import Study
    from autotune.model.trial import Outcome, Trial

_CRASH_SHARE = 0.02
"""Largest share of the time left for the repeat of a crash."""

_DISTURBED_SHARE = 0.12
"""The same for a disturbed run, as a wrong reading may cost the search several runs."""

_BASELINE_SHARE = 0.4
"""The same for the baseline's first runs, on which all ratios and cost estimates depend."""

_DISTURBED_REPEATS = 2
"""Largest number of repeats; a run that is still disturbed is marked."""

_ENDING_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1))
"""Signals with which terminals, systemd and schedulers end a job."""

_BY_SIGNAL = ("interrupted", "signal")
"""Reasons of a stop that may have reached the trial as well."""


class RepeatPolicy:
    """Decides about the end of each run.

    Args:
        forks: Evidence against forks.
        is_busy: Returns whether other processes use the machine now; False where that is not known.
    """

    def __init__(self, forks: ForkTrust, is_busy: Callable[[], bool]) -> None:
        self._forks = forks
        self._is_busy = is_busy
        self._crowded: Counter[int] = Counter()
        """Number of disturbed runs of a trial that are repeated."""
        self._set_aside: Measurement | None = None
        """The last of these measurements."""

    def reason(
        self, study: Study, trial: Trial, ended: TrialResult, *, stopping: str, remaining_s: float
    ) -> str:
        """Return why a run does not count and is repeated; empty if it counts.

        Args:
            study: The study before this run.
            trial: The run's trial.
            ended: Its end.
            stopping: Why the search stops; empty while it runs.
            remaining_s: Budget left for trials.
        """
        if not trial.stage.is_compared:
            return ""  # nothing depends on it
        if (found := self._forks.check_facts(study, trial, ended)) and not stopping:
            return f"started in a new interpreter: forked, {found}"
        failure = ended.outcome
        if isinstance(failure, Measurement):
            return "" if stopping else self._disturbed(study, trial, failure, ended.seconds, remaining_s)
        if stopping:
            return f"the search stopped: {stopping}" if _ended_with_the_search(failure, stopping) else ""
        if ended.start is StartMode.FORK and failure.kind.family not in (Family.OOM, Family.CANCELLED):
            return f"started in a new interpreter, as it failed when forked: {failure.message}"
        # A run that was measured and set aside was no failure.
        if trial.attempt - self._crowded[trial.number] > failure.kind.repeats:
            return ""
        if failure.kind.family is Family.CRASH:
            cheap = ended.seconds < _CRASH_SHARE * remaining_s
            return "" if trial.stage is Stage.BASELINE or not cheap else "to check whether the crash repeats"
        return failure.message

    def _disturbed(
        self, study: Study, trial: Trial, measured: Measurement, seconds: float, remaining_s: float
    ) -> str:
        """Return why a screening run is repeated at once: disturbed, while the previous run was not.

        Under constant load nothing is repeated: it would not help, and pairs cancel it. After the load has
        ended, the planner requests the run again. Confirmation needs no repeats: it sets such pairs aside and
        runs more.
        """
        if trial.stage.is_paired or trial.attempt > _DISTURBED_REPEATS or not _is_disturbed(study, measured):
            return ""
        last = next((t.measurement for t in reversed(study.trials) if t.measurement), self._set_aside)
        if last is not None and _is_disturbed(study, last):
            return ""
        is_first = trial.stage is Stage.BASELINE
        if seconds > (_BASELINE_SHARE if is_first else _DISTURBED_SHARE) * remaining_s or self._is_busy():
            return ""
        self._crowded[trial.number] += 1
        self._set_aside = measured
        if (cores := _foreign_cores(measured)) > 0:
            return f"other processes used {cores:.1f} cores meanwhile"
        return "other processes used the machine meanwhile"


def marked(study: Study, ended: TrialResult) -> TrialResult:
    """Return the result, marked if it was disturbed and is not repeated."""
    measured = ended.outcome
    if not isinstance(measured, Measurement) or not crowds(study)(_foreign_cores(measured)):
        return ended
    seen = measured.contamination
    flagged = replace(seen, flags=tuple(dict.fromkeys((*seen.flags, NEIGHBOUR))))
    return replace(ended, outcome=replace(measured, contamination=flagged))


def ended_by_job_signal(outcome: Outcome) -> bool:
    """Return whether a crash was caused by a job-ending signal, from exit code or Python's error."""
    if not isinstance(outcome, Failure) or outcome.kind.family is not Family.CRASH:
        return False
    number, code = outcome.evidence.get("signal"), outcome.evidence.get("code")
    by_code = isinstance(code, int) and code - 128 in _ENDING_SIGNALS
    return number in _ENDING_SIGNALS or by_code or outcome.evidence.get("error") == "KeyboardInterrupt"


def _ended_with_the_search(failure: Failure, stopping: str) -> bool:
    """Return whether the search's own stop may have ended this trial, so that it shows nothing."""
    if failure.kind.family in (Family.CANCELLED, Family.LOST) or ended_by_job_signal(failure):
        return True
    # Scripts handle signals in various ways: an error, an exit code, a last checkpoint.
    is_end = failure.kind.family is Family.CRASH or failure.kind is FailureKind.WARMUP_SHORT
    return stopping in _BY_SIGNAL and is_end


def _is_disturbed(study: Study, measured: Measurement) -> bool:
    """Return whether other processes used the trial's resources, according to samples from outside."""
    crowded = crowds(study)(_foreign_cores(measured))
    return crowded or not OTHERS.isdisjoint(measured.contamination.flags)


def _foreign_cores(measured: Measurement) -> float:
    return measured.contamination.foreign_cpu_frac or 0.0
