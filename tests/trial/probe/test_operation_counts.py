"""What is counted of operations: arithmetic, the bytes that are moved at the least, and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune.model.roofline import remainder
from autotune.trial.probe.operation_counts import Counted, machine, with_reduced

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def counted(run: Callable[[Any], Any]) -> Counted:
    import torch

    made = Counted(torch)
    made.begin()
    try:
        run(torch)
    finally:
        made.end()
    assert made.faults == 0
    return made


def moved(run: Callable[[Any], Any], name: str) -> float:
    (op,) = (op for op in counted(run).ops if op.name == name)
    return op.bytes


def test_each_tensor_counts_once_however_often_it_is_handed_over() -> None:
    assert moved(lambda t: t.ones(10).add_(t.ones(10)), "add_") == 80
    assert moved(lambda t: t.ones(10).fill_(2.0), "fill_") == 40


def test_rows_that_are_picked_count_and_the_table_does_not() -> None:
    import torch

    table, rows = torch.ones(1000, 4), torch.tensor([1, 2])
    assert moved(lambda t: t.nn.functional.embedding(rows, table), "embedding") == 2 * 8 + 2 * 4 * 4
    assert moved(lambda _: table[rows], "index") == 2 * 8 + 2 * 4 * 4
    assert moved(lambda _: table.index_put_((rows,), torch.ones(2, 4)), "index_put_") == 2 * 8 + 2 * 4 * 4


def test_memory_that_is_only_reserved_is_not_moved() -> None:
    assert moved(lambda t: t.empty(1000), "empty") == 0
    assert moved(lambda t: t.zeros_like(t.empty(1000)), "zeros_like") == 4000


def test_data_that_is_fetched_meanwhile_is_no_part_of_the_step() -> None:
    import torch

    made = Counted(torch)
    made.begin()
    torch.ones(3)
    with made.fetching():
        torch.ones(8, 8) @ torch.ones(8, 8)
    torch.ones(3)
    made.end()
    assert [op.name for op in made.ops] == ["ones", "ones"]
    assert made.flops == 0
    assert made.step().outside_s >= 0.0


def test_an_operation_of_which_nothing_is_known_counts_with_its_time() -> None:
    import torch

    made = Counted(torch)
    made._note(object(), (), {}, None, entered=0.0, begun=1.0, ended=3.0)
    assert made.faults == 1
    assert [(op.seconds, op.bytes) for op in made.ops] == [(2.0, 0.0)]


@pytest.mark.slow
def test_a_step_on_this_machine_has_a_remainder() -> None:
    import torch

    model = torch.nn.Linear(64, 64)

    def step(t: Any) -> None:
        model.zero_grad()
        model(t.ones(8, 64)).sum().backward()

    steps = [counted(step).step() for _ in range(2)]
    best = machine(torch, "cpu", ["float32"], try_s=0.01)
    reduced = with_reduced(torch, "cpu", best, try_s=0.01)
    assert {"float32"} <= set(reduced.flops_per_s) <= {"float32", "bfloat16"}
    assert best.dispatch_s > 0.0
    found = remainder(steps, reduced, device="cpu")
    assert found is not None
    assert found.ops_s is not None
    assert 0.0 < found.reduced_s <= found.ops_s
