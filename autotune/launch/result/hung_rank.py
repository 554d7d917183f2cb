"""Name the rank that others wait for, after a trial of several ranks was ended as hung.

The others wait in a collective. The guard requests the stacks of all ranks before it ends the trial. A rank
whose main thread is elsewhere did not arrive. On CUDA a collective returns at once and any later call may
wait for it, so only the numbers of completed steps are compared there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.launch.result.trial_output import last_text
from autotune.model.trial import FailureKind
from autotune.protocol.plan import stacks_name
from autotune.protocol.rank_log import file_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.model.trial import Failure
    from autotune.protocol.rank_log import RankLog

_HANGS: Final = (FailureKind.TIMEOUT_PROGRESS, FailureKind.TIMEOUT_TOTAL)
_STACKS_BYTES: Final = 8 * 1024
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x[^\n]*\n", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_WAITING: Final = re.compile(
    r"/torch/distributed/|/torch/nn/parallel/distributed\.py$|/torch/autograd/(graph|__init__)\.py$"
    r"|/deepspeed/comm/|/autotune/trial/measure/communication\.py$"
)
"""Files with the innermost frame of a waiting rank: collectives, and the backward pass in C++."""
_DISPATCH: Final = "/torch/_ops.py"
"""Calls an operator for the frame that is written after it."""


def with_hung_rank(failure: Failure, folder: Path, ranks: int, logs: Sequence[RankLog]) -> Failure:
    """Return the failure with the rank that hangs, its place and stack; unchanged if that is unknown.

    Args:
        failure: Of a trial without a result.
        folder: Folder of the trial.
        ranks: Number of ranks started; a script may have started others itself.
        logs: Logs of the ranks that completed a step.
    """
    ranks = max(ranks, sum(1 for _ in folder.glob(file_name("*"))))
    if failure.kind not in _HANGS or ranks < 2:
        return failure
    stacks = {rank: last_text(folder / stacks_name(rank), _STACKS_BYTES) for rank in range(ranks)}
    places = {rank: place for rank, text in stacks.items() if (place := innermost_frame(text))}
    rank = hung_rank(places, {log.rank: len(log.t_ns) for log in logs}, ranks, on_cuda=_on_cuda(logs))
    if rank is None:
        return failure
    place = places.get(rank)
    where = f", which is at {place[0]}:{place[1]}" if place else ""
    return replace(
        failure,
        message=f"{failure.message}; the others wait for rank {rank} of {ranks}{where}",
        evidence={**failure.evidence, "rank": rank, "stacks": stacks[rank]},
    )


def hung_rank(
    places: Mapping[int, tuple[str, int]], steps: Mapping[int, int], ranks: int, *, on_cuda: bool = False
) -> int | None:
    """Return the only rank that does not wait, else the only one with the fewest steps, else None.

    Args:
        places: File and line of each rank's innermost frame, as far as known.
        steps: Completed steps of each rank, as far as known.
        ranks: Number of ranks.
        on_cuda: Whether collectives return before they are done.
    """
    if not on_cuda and len(places) == ranks:
        absent = [rank for rank, (file, _) in places.items() if not _WAITING.search(file)]
        if len(absent) == 1:
            return absent[0]
    behind = [rank for rank, count in steps.items() if count == min(steps.values())]
    return behind[0] if len(steps) == ranks and len(behind) == 1 else None


def innermost_frame(stacks: str) -> tuple[str, int] | None:
    """Return file and line of the main thread's innermost frame; None without a stack.

    `faulthandler` writes the main thread last, and within a thread the innermost frame first.
    """
    for frame in _FRAME.finditer(_THREAD.split(stacks)[-1]):
        if not frame["file"].endswith(_DISPATCH):
            return frame["file"], int(frame["line"])
    return None


def _on_cuda(logs: Sequence[RankLog]) -> bool:
    return any(log.device.startswith("cuda") for log in logs)
