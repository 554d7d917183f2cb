"""Ranks of a distributed trial: started like ``torchrun`` does, and ended with the first that ends.

The process that the launcher starts does not train then. It starts itself once per rank and waits. Rank 0
measures; the others apply the same changes and report failures only. A trial ends with rank 0 or with the
first failure, as the others wait for a missing peer. Under `apply` all ranks run to their end. Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.model.distributed_launch import rank_variables
from autotune.protocol.events import Applied, Broke
from autotune.protocol.plan import RANK_VARIABLE, RANKS_VARIABLE
from autotune.trial.runtime.channel import Channel
from autotune.trial.runtime.exception_kind import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.protocol.plan import Plan

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_OPTION = ("--local_rank", "--local-rank")
"""Options of `autotune.model.distributed_launch.rank_words`."""
_GRACE_S = 30.0
"""From the request to end to the kill, under `apply`; the same as torchrun's."""
_REPORTED_CODES = (1, 6, 130)
"""Exit codes of a process that has reported its failure itself."""
_REPORT_S = 2.0
"""In a trial: time for the other ranks to report their failures."""
_POLL_S = 0.05
_MESSAGE_CHARS = 500
_TAIL_CHARS = 8000


def lead(plan: Plan) -> NoReturn:
    """Start the ranks of this plan, wait for them, and exit with the code of the first failure."""
    ranks = _Ranks()
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _frame: ranks.pass_on(number))
    ranks.start(plan.local_ranks or plan.ranks, plan.first_rank)
    code = _measured(plan, ranks) if plan.measure else _applied(ranks)
    sys.stdout.flush()
    os._exit(128 - code if code < 0 else code)


def wait_for(plan: Plan, processes: Sequence[Any]) -> NoReturn:
    """Wait for ranks that the script has started, and exit with the code of the first failure.

    Args:
        plan: Plan of this process, with the number of ranks.
        processes: From `multiprocessing`, in rank order.
    """
    ranks = _Ranks()
    ranks.left = {rank: _Started(process.pid) for rank, process in enumerate(processes)}
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _frame: ranks.pass_on(number))
    code = _measured(plan, ranks)
    sys.stdout.flush()
    os._exit(128 - code if code < 0 else code)


def report_end(plan: Plan, rank: int, code: int) -> None:
    """Report how a rank ended, unless it has reported that itself."""
    if code < 0:
        _send(plan, _killed(plan, rank, -code))
    elif code > 0 and code not in _REPORTED_CODES:
        _send(plan, _gone(plan, rank, f"ended with code {code}"))


def own_rank() -> int | None:
    """Return the rank of this process; None in the parent. Removes it from the environment."""
    os.environ.pop(RANKS_VARIABLE, None)
    text = os.environ.pop(RANK_VARIABLE, "")
    return int(text) if text.isdecimal() else None


def own_argv(argv: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Return the arguments of a rank, with the local rank first if its launcher passes it so."""
    name = argv[0].partition("=")[0] if argv else ""
    return (f"{name}={rank}", *argv[1:]) if name in _BY_OPTION else argv


def report_exit(plan: Plan, rank: int, code: int) -> None:
    """Report that the script ended this process as failed, without an exception."""
    if code:
        _send(plan, _gone(plan, rank, f"ended with code {code}"))


def report_error(plan: Plan, rank: int, error: BaseException, tail: str) -> None:
    """Report that this process failed, in addition to rank 0's reports."""
    lines = str(error).strip().splitlines() or [""]
    _send(
        plan,
        Broke(
            kind=kind_of(error),
            error=type(error).__name__,
            message=f"{lines[0][:_MESSAGE_CHARS]} (rank {rank} of {plan.ranks})",
            tail=tail[-_TAIL_CHARS:],
            phase="",
            rank=rank,
        ),
    )


def report_unapplied(plan: Plan, rank: int, knob: str, why: str) -> None:
    """Report that a change did not take effect in this process."""
    ending = next((change.spelling.how for change in plan.changes if change.knob == knob), "")
    _send(
        plan,
        Broke(
            kind="config_rejected",
            error="",
            message=f"{why} (rank {rank} of {plan.ranks})",
            tail="",
            phase="",
            knob=knob,
            how=ending,
            rank=rank,
        ),
    )


def report_applied(plan: Plan, rank: int) -> None:
    """Report that this process has read every requested change back as applied."""
    if plan.changes:
        _send(plan, Applied(rank=rank))


def _send(plan: Plan, event: Applied | Broke) -> None:
    with contextlib.suppress(OSError):
        channel = Channel(Path(plan.events_path), plan.nonce)
        channel.send(event)
        channel.close()


def _started(rank: int, first: int) -> subprocess.Popen[bytes]:
    # The same interpreter options and program as for this process.
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, **rank_variables(rank - first, first=first), RANK_VARIABLE: str(rank)},
    )


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(slots=True)
class _Started:
    """A process started by the script."""

    pid: int
    returncode: int | None = None


class _Ranks:
    """The processes that are still running."""

    def __init__(self) -> None:
        self.left: dict[int, subprocess.Popen[bytes] | _Started] = {}
        self.end_requested = False
        """The end of all processes was requested."""
        self._sent: list[int] = []

    def start(self, count: int, first: int = 0) -> None:
        """Start all processes of this machine; signals received meanwhile reach the later ones too."""
        for rank in range(first, first + count):
            process = self.left[rank] = _started(rank, first)
            for number in tuple(self._sent):
                _kill(process.pid, number)

    def pass_on(self, number: int) -> None:
        """Forward a signal of this process to all of them."""
        self.end_requested = self.end_requested or number in _ENDING
        # A terminal has already sent Ctrl-C to the whole foreground group. A second one would interrupt the
        # script's handling of the first, such as its last checkpoint.
        if number != signal.SIGINT or not sys.stdin or not sys.stdin.isatty():
            self.send(number)

    def send(self, number: int) -> None:
        """Send a signal to all of them."""
        self._sent.append(number)
        for process in tuple(self.left.values()):
            _kill(process.pid, number)

    def next(self, within_s: float | None = None) -> tuple[int, int] | None:
        """Wait for the next process to end; return it and its code, below 0 for a signal; None on timeout."""
        until_s = None if within_s is None else time.monotonic() + within_s
        while self.left:
            pid, status = os.waitpid(-1, 0 if until_s is None else os.WNOHANG)
            rank = next((rank for rank, process in self.left.items() if process.pid == pid), None)
            if rank is not None:
                code = os.waitstatus_to_exitcode(status)
                self.left.pop(rank).returncode = code
                return rank, code
            if until_s is not None and pid == 0:
                if time.monotonic() > until_s:
                    return None
                time.sleep(_POLL_S)
        return None


def _measured(plan: Plan, ranks: _Ranks) -> int:
    code, early = 0, None
    while not code and (ended := ranks.next()) is not None:
        rank, code = ended
        _report_unreported_end(plan, ranks, rank, code)
        if rank == 0:
            break
        early = rank if early is None else early
    # Another rank may report the cause; a finished rank 0 needs no peer.
    until_s = time.monotonic() + (_REPORT_S if code else 0.0)
    while ranks.left and (left_s := until_s - time.monotonic()) > 0:
        if (ended := ranks.next(left_s)) is not None:
            _report_unreported_end(plan, ranks, *ended)
    if code > 0 and early is not None and not ranks.end_requested:
        # Delayed, as an end before rank 0's is no failure if no peer needs the process. Its own report has
        # priority.
        _send(plan, _gone(plan, early, "had ended before the first one"))
    ranks.send(signal.SIGKILL)
    return code


def _report_unreported_end(plan: Plan, ranks: _Ranks, rank: int, code: int) -> None:
    """Report the end of a process that cannot report it itself."""
    if code < 0 and not ranks.end_requested:
        _send(plan, _killed(plan, rank, -code))
    elif rank and code > 0 and code not in _REPORTED_CODES:
        _send(plan, _gone(plan, rank, f"ended with code {code}"))


def _applied(ranks: _Ranks) -> int:
    code, grace_s = 0, None
    while ranks.left:
        ended = ranks.next(grace_s)
        if ended is None:
            ranks.send(signal.SIGKILL)
        elif ended[1] and not code:
            code, grace_s = ended[1], _GRACE_S
            if not ranks.end_requested:
                # Otherwise all ranks got the signal, and one may still be writing its checkpoint.
                ranks.send(signal.SIGTERM)
    return code


def _gone(plan: Plan, rank: int, ending: str) -> Broke:
    return Broke(
        kind="crash_exit",
        error="SystemExit",
        message=f"rank {rank} of {plan.ranks} {ending}",
        tail="",
        phase="",
        rank=rank,
    )


def _killed(plan: Plan, rank: int, number: int) -> Broke:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    is_kill = number == signal.SIGKILL
    return Broke(
        kind="oom_host" if is_kill else "crash_signal",
        error="",
        message=f"rank {rank} of {plan.ranks} was ended by {name}"
        + (", most likely by the kernel for lack of memory" if is_kill else ""),
        tail="",
        phase="",
        rank=rank,
    )
