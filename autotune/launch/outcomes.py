"""What became of a trial once its process has ended: of its segments, as seen from outside."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.launch.guard.guard import AWAY_S
from autotune.launch.result.classify import classify
from autotune.launch.result.host_samples import HostSamples, read_samples
from autotune.launch.result.measure import measure
from autotune.launch.result.rank_logs import fold_ranks, with_rank
from autotune.launch.result.trial_output import last_text, log_tail
from autotune.model.trial import CEILINGS, Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.launch.result.process_reports import ProcessReports
    from autotune.launch.running_trial import Running
    from autotune.model.trial import Launch, Outcome

LESS_MEMORY_SHARE = 0.75
"""Of what was planned for a trial: where less than that is free when it begins, others have come."""

_STACKS_BYTES = 8 * 1024


def outside_of(running: Running, result: dict[str, Any] | None, wrote: Sequence[str]) -> HostSamples:
    """What was seen of a process from outside; `wrote` are files of the user's that changed meanwhile."""
    return HostSamples(
        start_ns=running.start_ns,
        samples=read_samples(result["samples"] if result else ()),
        devices=tuple(running.devices),
        peak_bytes=int(result["peak_bytes"]) if result else 0,
        # What it had then less than that was somebody else's for a while, and bounds no other trial.
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
    """Closed segments keep what they measured; the one that was open is charged with the ending."""
    told, assignment = running.told, running.prepared.assignment
    fold_ranks(told, running.prepared.folder, assignment.launch.world)
    outcomes: dict[int, Outcome] = {}
    for segment in assignment.segments:
        closed = told.closed.get(segment.trial)
        if closed is None:
            failure = classify(
                result,
                told,
                log_tail(running.prepared.folder),
                segment.fidelity,
                progress_limit_s=running.progress_limit_s,
            )
            failure = _stopped(_others_memory(failure, running, result), outside)
            failure = with_rank(failure, told.ranks)
            extra: dict[str, str | int | float] = {
                "attempt": assignment.attempt,
                "dir": str(running.prepared.folder),
            }
            stacks = last_text(running.prepared.folder / "stacks.txt", _STACKS_BYTES)
            if stacks:
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
        # What the process does to memory and device afterwards is none of the segment's.
        goes_on = segment.fidelity.probe == CEILINGS
        seen = outside.until(closed.sent_ns or closed.end_ns) if goes_on else outside
        unread = None if closed.short else _unread(assignment.launch, told)
        outcome = unread or measure(closed, told, seen, assignment.launch.changes)
        outcomes[segment.trial] = with_rank(outcome, told.ranks) if isinstance(outcome, Failure) else outcome
    return outcomes


def _unread(launch: Launch, told: ProcessReports) -> Failure | None:
    """Return the failure of a trial in which a process has not read back what was asked for."""
    missing = [rank for rank in range(1, launch.world) if rank not in told.applied]
    if not missing or not launch.changes:
        return None
    knobs = ", ".join(change.knob for change in launch.changes)
    return Failure(
        kind=FailureKind.CONFIG_REJECTED,
        message=f"rank {missing[0]} of {launch.world} did not report that {knobs} took effect",
        evidence={"rank": missing[0]},
    )


def _others_memory(failure: Failure, running: Running, result: dict[str, Any] | None) -> Failure:
    """Not charged to a config where others had taken much of the memory that the search counted on."""
    allowed, had = running.prepared.assignment.memory_limit_bytes, running.memory_limit_bytes
    if not result or result["why"] != "memory_limit" or not 0 < had < LESS_MEMORY_SHARE * allowed:
        return failure
    return replace(
        failure,
        kind=FailureKind.CONTENDED,
        message=f"others had taken memory of this machine: {failure.message}",
    )


def _stopped(failure: Failure, outside: HostSamples) -> Failure:
    """Not charged to a config where a stop took the time in which the process would have measured."""
    seconds = outside.stopped_s(outside.start_ns, time.perf_counter_ns())
    if seconds < AWAY_S or failure.kind not in (FailureKind.WARMUP_SHORT, FailureKind.NO_METRIC):
        return failure
    message = f"the script was stopped for {seconds:.0f} s: {failure.message}"
    return replace(failure, kind=FailureKind.CONTENDED, message=message)
