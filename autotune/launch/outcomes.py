"""Outcomes of a trial's segments after its process has ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.launch.guard.guard import AWAY_S
from autotune.launch.result.classify import classify
from autotune.launch.result.host_samples import HostSamples, read_samples
from autotune.launch.result.hung_rank import with_hung_rank
from autotune.launch.result.measure import measure
from autotune.launch.result.rank_logs import fold_ranks, with_rank
from autotune.launch.result.trial_output import last_text, log_tail
from autotune.model.trial import CEILINGS, Failure, FailureKind
from autotune.protocol.plan import stacks_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.process_reports import ProcessReports
    from autotune.launch.running_trial import Running
    from autotune.model.trial import Launch, Outcome

LESS_MEMORY_SHARE = 0.75
"""Share of the planned memory. With less free at the start, other processes have taken some."""

_STACKS_BYTES = 8 * 1024


def outside_of(running: Running, result: dict[str, Any] | None, wrote: Sequence[str]) -> HostSamples:
    """Return the samples taken outside of a process.

    Args:
        running: The trial.
        result: Verdict of the guard.
        wrote: The user's files that changed meanwhile.
    """
    return HostSamples(
        start_ns=running.start_ns,
        samples=read_samples(result["samples"] if result else ()),
        devices=tuple(running.devices),
        peak_bytes=int(result["peak_bytes"]) if result else 0,
        # A smaller limit was due to other processes at that moment, and does not bound other trials.
        limit_bytes=running.prepared.assignment.memory_limit_bytes or running.memory_limit_bytes,
        cold=running.prepared.caches.cold,
        quota=(result or {}).get("cpu_quota"),
        energies=tuple(running.energies),
        disturbed=tuple(running.disturbed),
        flags=("wrote_outside",) if wrote else (),
    )


def outcomes_of(
    running: Running, result: dict[str, Any] | None, outside: HostSamples, wrote: Sequence[str]
) -> dict[int, Outcome]:
    """Return the outcome per segment. Closed ones keep their measurement; the open one gets the failure."""
    reports, assignment = running.reports, running.prepared.assignment
    fold_ranks(reports, running.prepared.folder, assignment.launch.world)
    outcomes: dict[int, Outcome] = {}
    for segment in assignment.segments:
        closed = reports.closed.get(segment.trial)
        if closed is None:
            failure = classify(
                result,
                reports,
                log_tail(running.prepared.folder),
                segment.fidelity,
                progress_limit_s=running.progress_limit_s,
            )
            failure = _stopped(_others_memory(failure, running, result), outside)
            failure = with_rank(failure, reports.ranks)
            extra: dict[str, str | int | float] = {
                "attempt": assignment.attempt,
                "dir": str(running.prepared.folder),
            }
            failure = with_hung_rank(failure, running.prepared.folder, assignment.launch.world, reports.ranks)
            stacks = last_text(running.prepared.folder / stacks_name(0), _STACKS_BYTES)
            if stacks and "stacks" not in failure.evidence:
                extra["stacks"] = stacks
            if wrote:
                extra["wrote_outside"] = "; ".join(wrote[:10])
            outcomes[segment.trial] = Failure(
                kind=failure.kind,
                message=failure.message,
                evidence={**failure.evidence, **extra},
                readings=failure.readings,
            )
            break
        # The ceiling probe runs on after the measurement; its memory and device use are left out.
        goes_on = segment.fidelity.probe == CEILINGS
        seen = outside.until(closed.sent_ns or closed.end_ns) if goes_on else outside
        unread = None if closed.short else _unread(assignment.launch, reports)
        outcome = unread or measure(closed, reports, seen, assignment.launch.changes)
        outcomes[segment.trial] = (
            with_rank(outcome, reports.ranks) if isinstance(outcome, Failure) else outcome
        )
    return outcomes


def _unread(launch: Launch, reports: ProcessReports) -> Failure | None:
    """Return the failure of a trial in which a process has not read back the requested values."""
    missing = [rank for rank in range(1, launch.world) if rank not in reports.applied]
    if not missing or not launch.changes:
        return None
    knobs = ", ".join(change.knob for change in launch.changes)
    return Failure(
        kind=FailureKind.CONFIG_REJECTED,
        message=f"rank {missing[0]} of {launch.world} did not report that {knobs} took effect",
        evidence={"rank": missing[0]},
    )


def _others_memory(failure: Failure, running: Running, result: dict[str, Any] | None) -> Failure:
    """Return the failure, not charged to the config if other processes took much of the planned memory."""
    allowed, had = running.prepared.assignment.memory_limit_bytes, running.memory_limit_bytes
    if not result or result["why"] != "memory_limit" or not 0 < had < LESS_MEMORY_SHARE * allowed:
        return failure
    return replace(
        failure,
        kind=FailureKind.CONTENDED,
        message=f"others had taken memory of this machine: {failure.message}",
    )


def _stopped(failure: Failure, outside: HostSamples) -> Failure:
    """Return the failure, not charged to the config if the script was stopped in the measuring time."""
    seconds = outside.stopped_s(outside.start_ns, time.perf_counter_ns())
    if seconds < AWAY_S or failure.kind not in (FailureKind.WARMUP_SHORT, FailureKind.NO_METRIC):
        return failure
    message = f"the script was stopped for {seconds:.0f} s: {failure.message}"
    return replace(failure, kind=FailureKind.CONTENDED, message=message)
