"""Several processes that train together: started as ``torchrun`` would, and ended with the first that ends.

The process that the launcher starts trains nothing then. It starts itself once for each of them and waits;
the first (rank 0) measures, the others carry out the same changes and tell nothing but their failure. A trial
is over with rank 0, or with the first that fails: whoever is left waits for one that is gone. Under `apply`
all of them run to their ends. Standard library only.
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
"""Of `autotune.model.distributed_launch.rank_words`."""
_GRACE_S = 30.0
"""From the request to end to the kill, under `apply`; torchrun's own."""
_TOLD_CODES = (1, 6, 130)
"""Of a process that has told of its failure itself."""
_LAST_WORDS_S = 2.0
"""In a trial: what the others get to say why they failed."""
_POLL_S = 0.05
_MESSAGE_CHARS = 500
_TAIL_CHARS = 8000


def lead(plan: Plan) -> NoReturn:
    """Start the processes of this plan, see them to their end, and end with the code of the first failure."""
    ranks = _Ranks()
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _frame: ranks.pass_on(number))
    ranks.start(plan.local_ranks or plan.ranks, plan.first_rank)
    code = _measured(plan, ranks) if plan.measure else _applied(ranks)
    sys.stdout.flush()
    os._exit(128 - code if code < 0 else code)


def wait_for(plan: Plan, processes: Sequence[Any]) -> NoReturn:
    """See ranks that the script has started to their end, and end with the code of the first failure.

    Args:
        plan: Of this process, with their number.
        processes: Of `multiprocessing`, in the order of their ranks.
    """
    ranks = _Ranks()
    ranks.left = {rank: _Started(process.pid) for rank, process in enumerate(processes)}
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _frame: ranks.pass_on(number))
    code = _measured(plan, ranks)
    sys.stdout.flush()
    os._exit(128 - code if code < 0 else code)


def report_end(plan: Plan, rank: int, code: int) -> None:
    """Report how a rank ended, where it cannot have reported that itself."""
    if code < 0:
        _tell(plan, _killed(plan, rank, -code))
    elif code > 0 and code not in _TOLD_CODES:
        _tell(plan, _gone(plan, rank, f"ended with code {code}"))


def own_rank() -> int | None:
    """Of this process; None in one that has to start them. Nobody below learns of it."""
    os.environ.pop(RANKS_VARIABLE, None)
    text = os.environ.pop(RANK_VARIABLE, "")
    return int(text) if text.isdecimal() else None


def own_argv(argv: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Return the arguments of a rank where its launcher gives the local rank as the first of them."""
    name = argv[0].partition("=")[0] if argv else ""
    return (f"{name}={rank}", *argv[1:]) if name in _BY_OPTION else argv


def tell_exit(plan: Plan, rank: int, code: int) -> None:
    """Say that the script ended this process as failed, without an exception."""
    if code:
        _tell(plan, _gone(plan, rank, f"ended with code {code}"))


def tell(plan: Plan, rank: int, error: BaseException, tail: str) -> None:
    """Say that this process failed, beside what the first one tells."""
    lines = str(error).strip().splitlines() or [""]
    _tell(
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


def tell_untuned(plan: Plan, rank: int, knob: str, why: str) -> None:
    """Say that a change did not take effect in this process."""
    how = next((change.spelling.how for change in plan.changes if change.knob == knob), "")
    _tell(
        plan,
        Broke(
            kind="config_rejected",
            error="",
            message=f"{why} (rank {rank} of {plan.ranks})",
            tail="",
            phase="",
            knob=knob,
            how=how,
            rank=rank,
        ),
    )


def report_applied(plan: Plan, rank: int) -> None:
    """Report that this process has read every requested change back as applied."""
    if plan.changes:
        _tell(plan, Applied(rank=rank))


def _tell(plan: Plan, event: Applied | Broke) -> None:
    with contextlib.suppress(OSError):
        channel = Channel(Path(plan.events_path), plan.nonce)
        channel.send(event)
        channel.close()


def _started(rank: int, first: int) -> subprocess.Popen[bytes]:
    # Options of the interpreter and what it runs, as this one was started.
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, **rank_variables(rank - first, first=first), RANK_VARIABLE: str(rank)},
    )


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(slots=True)
class _Started:
    """A process that was started by the script."""

    pid: int
    returncode: int | None = None


class _Ranks:
    """The processes that have not ended yet."""

    def __init__(self) -> None:
        self.left: dict[int, subprocess.Popen[bytes] | _Started] = {}
        self.asked = False
        """Somebody has asked for the end of all of it."""
        self._sent: list[int] = []

    def start(self, count: int, first: int = 0) -> None:
        """Start all of this machine; what was sent meanwhile reaches the later ones too."""
        for rank in range(first, first + count):
            process = self.left[rank] = _started(rank, first)
            for number in tuple(self._sent):
                _kill(process.pid, number)

    def pass_on(self, number: int) -> None:
        """What this process was sent, for all of them."""
        self.asked = self.asked or number in _ENDING
        # A terminal has told its whole foreground group about Ctrl-C: a second one would break off what a
        # script does about the first, such as its last checkpoint.
        if number != signal.SIGINT or not sys.stdin or not sys.stdin.isatty():
            self.send(number)

    def send(self, number: int) -> None:
        """A signal for all of them."""
        self._sent.append(number)
        for process in tuple(self.left.values()):
            _kill(process.pid, number)

    def next(self, within_s: float | None = None) -> tuple[int, int] | None:
        """The next one to end, and its code, below 0 for a signal; None where none does in time."""
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
        _tell_end(plan, ranks, rank, code)
        if rank == 0:
            break
        early = rank if early is None else early
    # Why it failed, another one may know better; a first one that is done needs nobody any more.
    until_s = time.monotonic() + (_LAST_WORDS_S if code else 0.0)
    while ranks.left and (left_s := until_s - time.monotonic()) > 0:
        if (ended := ranks.next(left_s)) is not None:
            _tell_end(plan, ranks, *ended)
    if code > 0 and early is not None and not ranks.asked:
        # Not at once: that it ended before the first is no failure where nobody misses it. What it has told
        # itself counts before this.
        _tell(plan, _gone(plan, early, "had ended before the first one"))
    ranks.send(signal.SIGKILL)
    return code


def _tell_end(plan: Plan, ranks: _Ranks, rank: int, code: int) -> None:
    """Say that this process has ended in a way of which it cannot tell itself."""
    if code < 0 and not ranks.asked:
        _tell(plan, _killed(plan, rank, -code))
    elif rank and code > 0 and code not in _TOLD_CODES:
        _tell(plan, _gone(plan, rank, f"ended with code {code}"))


def _applied(ranks: _Ranks) -> int:
    code, grace_s = 0, None
    while ranks.left:
        ended = ranks.next(grace_s)
        if ended is None:
            ranks.send(signal.SIGKILL)
        elif ended[1] and not code:
            code, grace_s = ended[1], _GRACE_S
            if not ranks.asked:
                # Else all of them know, and one may still be writing its checkpoint.
                ranks.send(signal.SIGTERM)
    return code


def _gone(plan: Plan, rank: int, how: str) -> Broke:
    return Broke(
        kind="crash_exit",
        error="SystemExit",
        message=f"rank {rank} of {plan.ranks} {how}",
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
