"""The rank that the others wait for, from stacks and completed steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.launch.result.hung_rank import hung_rank, innermost_frame, with_hung_rank
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.plan import stacks_name
from autotune.protocol.rank_log import RankLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BACKWARD = ("/lib/torch/autograd/graph.py", 979)
REDUCE = ("/lib/torch/distributed/distributed_c10d.py", 3000)
TRAIN = ("/home/me/train.py", 12)
STACKS = """Thread 0x00007f01 (most recent call first):
  File "/lib/python3/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "{file}", line {line} in a
  File "/home/me/train.py", line 40 in <module>
"""
HUNG = Failure(kind=FailureKind.TIMEOUT_PROGRESS, message="no step for 8 s")


def stacks(place: tuple[str, int]) -> str:
    return STACKS.format(file=place[0], line=place[1])


def test_the_innermost_frame_is_that_of_the_main_thread() -> None:
    assert innermost_frame(stacks(BACKWARD)) == BACKWARD
    assert innermost_frame("") is None


def test_a_call_of_an_operator_counts_as_the_frame_that_called_it() -> None:
    operator = '  File "/lib/torch/_ops.py", line 1 in __call__\n'
    text = stacks(REDUCE).replace(
        'call first):\n  File "/lib/torch', f'call first):\n{operator}  File "/lib/torch'
    )
    assert operator in text
    assert innermost_frame(text) == REDUCE


@pytest.mark.parametrize(
    ("places", "steps", "found"),
    [
        ({0: BACKWARD, 1: TRAIN}, {0: 8, 1: 8}, 1),
        ({0: TRAIN, 1: REDUCE}, {}, 0),
        ({0: BACKWARD, 1: BACKWARD}, {0: 9, 1: 8}, 1),
        ({0: TRAIN, 1: TRAIN, 2: REDUCE}, {0: 8, 1: 8, 2: 8}, None),
        ({0: BACKWARD, 1: BACKWARD}, {0: 8, 1: 8}, None),
        ({1: TRAIN}, {1: 8}, None),
        ({}, {0: 8, 1: 7}, 1),
        ({}, {}, None),
    ],
)
def test_the_rank_that_is_in_no_collective_or_has_fewest_steps_is_named(
    places: Mapping[int, tuple[str, int]], steps: Mapping[int, int], found: int | None
) -> None:
    ranks = max([1, *places, *steps]) + 1
    assert hung_rank(places, steps, ranks) == found


def test_on_cuda_only_the_steps_are_compared() -> None:
    places = {0: TRAIN, 1: BACKWARD}
    assert hung_rank(places, {0: 9, 1: 8}, 2, on_cuda=True) == 1
    assert hung_rank(places, {0: 8, 1: 8}, 2, on_cuda=True) is None


def test_a_hang_is_reported_with_the_place_and_stack_of_the_rank(tmp_path: Path) -> None:
    for rank, place in enumerate((BACKWARD, TRAIN)):
        (tmp_path / stacks_name(rank)).write_text(stacks(place))
    found = with_hung_rank(HUNG, tmp_path, 2, [RankLog(rank=0), RankLog(rank=1)])
    assert found.message == (
        "no step for 8 s; the others wait for rank 1 of 2, which is at /home/me/train.py:12"
    )
    assert (found.evidence["rank"], found.evidence["stacks"]) == (1, stacks(TRAIN))


def test_other_failures_and_single_processes_name_no_rank(tmp_path: Path) -> None:
    crash = Failure(kind=FailureKind.CRASH_EXIT, message="code 1")
    assert with_hung_rank(crash, tmp_path, 2, []) is crash
    assert with_hung_rank(HUNG, tmp_path, 1, []) is HUNG
