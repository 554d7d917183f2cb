"""One training on several machines: each has a guard, and the first one to end ends all of them.

The first machine measures, as rank 0 runs there. Every other machine runs its ranks under its own guard.
Its logs are added to those of the first machine before the outcome is made. Rendezvous is static: the
address of the first machine and a port that is free there.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from autotune.launch.result.process_reports import lost_neighbour
from autotune.launch.runner import Runner, TrialResult
from autotune.model.distributed_launch import rank_variables
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.rank_log import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.launch.result.host_samples import HostSamples
    from autotune.launch.result.process_reports import ProcessReports
    from autotune.model.trial import Assignment, Outcome

Witness = Callable[["Assignment", "ProcessReports", "HostSamples"], None]

LAST_WORDS_S: Final = 2.0
"""Delay between the failure of another machine and the end of the first one, which may show the cause."""
DONE_S: Final = 5.0
"""The same delay if the ranks of a machine end without a failure, as at the end of a script."""
STOP_S: Final = 8.0
"""Time for the processes of other machines to end after those of the first: grace period and kill."""
_POLL_S: Final = 0.2
_UID: Final = re.compile(r"(.*-)([0-9a-f]{6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Report of a machine other than the first on a trial, made once its processes have ended.

    Args:
        failure: Their end; ``killed_user`` if they were stopped.
        logs: File name of each rank's log -> contents in hexadecimal, for JSON.
        applied: Ranks that have read every change back.
    """

    failure: Failure
    logs: Mapping[str, str] = field(default_factory=dict[str, str])
    applied: tuple[int, ...] = ()

    @property
    def is_done(self) -> bool:
        """True if its ranks ended by themselves without a failure."""
        return self.failure.kind in (FailureKind.NO_METRIC, FailureKind.WARMUP_SHORT)


class Member(Protocol):
    """A machine other than the first."""

    def start(self, part: Assignment) -> None:
        """Begin to run its part of a trial."""

    def wait(self, seconds: float) -> NodeReport | None:
        """Return the report once its processes have ended; None if they have not in that time."""

    def stop(self) -> None:
        """Request the end of its processes."""


def part_of(assignment: Assignment, node: int, address: str, port: int) -> Assignment:
    """Return the part of an assignment that one machine runs.

    Args:
        assignment: Assignment of the whole job.
        node: Number of the machine.
        address: Address of the first machine.
        port: Port that is free there.
    """
    launch = assignment.launch
    env = {
        **launch.env,
        **rank_variables(0, first=node * launch.ranks),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    part = replace(assignment, launch=replace(launch, node=node, env=env))
    if not node:
        return part
    # Steps are not counted there: only the deadline of the whole run applies.
    segments = tuple(
        replace(s, fidelity=replace(s.fidelity, setup_s=s.fidelity.deadline_s)) for s in part.segments
    )
    return replace(part, uid=_uid(assignment.uid, node), segments=segments)


def _uid(uid: str, node: int) -> str:
    """Return a different uid for each node: two nodes of a cluster can be one machine."""
    found = _UID.fullmatch(uid)
    assert found is not None
    return f"{found[1]}{(int(found[2], 16) + node) % 2**24:06x}"


def free_port() -> int:
    """Return a port that is unused on every address of this machine now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def collected(study_dir: Path, part: Assignment, reports: ProcessReports, failure: Failure) -> NodeReport:
    """Return the report of a machine from the folder of its part."""
    folder = study_dir / "trials" / part.uid
    logs = {path.name: path.read_bytes().hex() for path in folder.glob(file_name("*"))}
    return NodeReport(failure=failure, logs=logs, applied=tuple(sorted(reports.applied)))


class GangRunner(Runner):
    """Runner of assignments on this machine and others, as one trial.

    Args:
        local: Returns the runner of this machine, which calls the given witness before each outcome.
        members: Runners of the other machines, by number.
        address: Address of this machine for the others.
        study_dir: Study folder of the local runner.
    """

    def __init__(
        self, local: Callable[[Witness], Runner], members: Sequence[Member], *, address: str, study_dir: Path
    ) -> None:
        self._local = local(self._gather)
        self._members = members
        self._address = address
        self._study_dir = study_dir
        self._reports: dict[int, NodeReport] = {}
        """Node -> report; those that ended before the first machine did, and those that failed."""
        self._is_over = threading.Event()
        self._is_stopped = False

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """See `Runner.run`."""
        port = free_port()
        self._reports, self._is_over = {}, threading.Event()
        for node, member in enumerate(self._members, start=1):
            member.start(part_of(assignment, node, self._address, port))
        watch = threading.Thread(target=self._watch, args=(self._is_over,), daemon=True)
        watch.start()
        try:
            for ended in self._local.run(part_of(assignment, 0, self._address, port)):
                yield replace(ended, outcome=self._judged(ended.outcome))
        finally:
            # A trial that was refused before its start has no witness.
            self._end_members()
            watch.join()
            self._is_stopped = False

    def stop(self) -> None:
        """See `Runner.stop`."""
        self._is_stopped = True
        self._local.stop()

    def close(self) -> None:
        """See `Runner.close`."""
        self._local.close()

    def _watch(self, is_over: threading.Event) -> None:
        """End the part of the first machine some seconds after the part of another one has ended."""
        until_s = float("inf")
        while not is_over.is_set():
            for node, member in enumerate(self._members, start=1):
                if node in self._reports:
                    continue
                if (report := member.wait(_POLL_S / len(self._members))) is not None:
                    self._reports[node] = report
                    until_s = min(until_s, time.monotonic() + (DONE_S if report.is_done else LAST_WORDS_S))
            if time.monotonic() > until_s:
                self._local.stop()
                return
            if len(self._reports) == len(self._members):
                is_over.wait(_POLL_S)

    def _end_members(self) -> list[NodeReport | None]:
        """End all other parts, and return their reports; None for one that does not end."""
        self._is_over.set()
        for member in self._members:
            member.stop()
        until_s = time.monotonic() + STOP_S
        known = (
            self._reports.get(node) or member.wait(max(0.0, until_s - time.monotonic()))
            for node, member in enumerate(self._members, start=1)
        )
        return list(known)

    def _gather(self, assignment: Assignment, reports: ProcessReports, _seen: HostSamples) -> None:
        """Add the reports of the other machines before the outcome of the trial is made."""
        folder = self._study_dir / "trials" / assignment.uid
        for node, report in enumerate(self._end_members(), start=1):
            if report is None:
                continue
            if not report.is_done:
                # Its failure may be the cause, although this machine ended before it was reported.
                self._reports.setdefault(node, report)
            reports.applied.update(report.applied)
            for name, text in report.logs.items():
                (folder / name).write_bytes(bytes.fromhex(text))

    def _judged(self, outcome: Outcome) -> Outcome:
        """Return the first cause if several machines failed."""
        if not isinstance(outcome, Failure) or self._is_stopped:
            return outcome
        others = [(node, r.failure) for node, r in self._reports.items()]
        others = [(n, f) for n, f in others if f.kind is not FailureKind.KILLED_USER]
        if not others:
            return outcome
        is_own = outcome.kind is not FailureKind.KILLED_USER and not lost_neighbour(_text(outcome))
        if is_own:
            return outcome
        node, cause = next((o for o in others if not lost_neighbour(_text(o[1]))), others[0])
        if outcome.kind is not FailureKind.KILLED_USER and lost_neighbour(_text(cause)):
            return outcome
        message = cause.message
        if self._reports[node].is_done:
            cause = replace(cause, kind=FailureKind.CRASH_EXIT)
            message = "its ranks had ended before rank 0"
        where = f"machine {node + 1} of {len(self._members) + 1}: "
        return replace(cause, message=f"{where}{message}", evidence={**outcome.evidence, **cause.evidence})


def _text(failure: Failure) -> str:
    return f"{failure.message} {failure.evidence.get('traceback', '')}"
