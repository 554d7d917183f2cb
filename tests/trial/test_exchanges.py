"""Operations that exchange with other processes, as PyTorch's own stand-in for them has it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_an_exchange_with_other_processes_is_counted_as_one() -> None:
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    fakes = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from autotune.trial.probe.operation_counts import Counted

    dist.init_process_group("fake", rank=0, world_size=2, store=fakes.FakeStore())
    counted = Counted(torch)
    counted.begin()
    try:
        x = torch.ones(8) * 2
        dist.all_reduce(x)
        x.add_(1)
    finally:
        counted.end()
        dist.destroy_process_group()
    assert sum(op.communicates for op in counted.ops) == 1
    assert all(op.flops == op.bytes == 0.0 for op in counted.ops if op.communicates)
    assert len(counted.ops) > 1
    assert not counted.faults
