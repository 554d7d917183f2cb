"""Optimizer steps that processes share out, as one of two processes sees them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.trial.hooks.distributed.sharded_optimizer import ShardedOptimizer, shares
from autotune.trial.runtime.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_shares_are_of_about_equal_size_and_alike_on_every_process() -> None:
    sizes = [7, 1, 9, 3, 3, 2]
    found = shares("abcdef", sizes, 2)
    assert found == [["c", "e", "b"], ["a", "d", "f"]]
    assert shares("ab", [1, 1], 3) == [["a"], ["b"], []]


@pytest.mark.torch
class TestOneOfTwo:
    @pytest.fixture
    def model(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        import torch
        from torch import distributed

        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
        group = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
        wrapper = SimpleNamespace(process_group=group, parameters=model.parameters)
        parallel: Any = SimpleNamespace(wrappers=lambda: [wrapper], on_constructed=[])
        self.sent: list[tuple[int, int]] = []
        monkeypatch.setattr(
            distributed,
            "_broadcast_coalesced",
            lambda _group, tensors, _size, rank: self.sent.append((rank, len(tensors))),
        )
        undo, plain = Undo(), torch.optim.Optimizer.state_dict
        self.hook = ShardedOptimizer(undo, parallel)
        self.hook.install(torch)
        self.hook.is_wanted = True
        (begin,) = parallel.on_constructed
        begin(wrapper)
        yield model
        undo.undo_all()
        assert torch.optim.Optimizer.state_dict is plain

    def stepped(self, model: Any, **options: Any) -> Any:
        import torch

        optimizer = torch.optim.AdamW(model.parameters(), **options)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return optimizer

    def test_it_updates_its_share_and_keeps_all_gradients(self, model: Any) -> None:
        before = [p.detach().clone() for p in model.parameters()]
        assert self.hook.observed() is None
        optimizer = self.stepped(model)
        moved = [not p.detach().equal(b) for p, b in zip(model.parameters(), before, strict=True)]
        assert moved == [True, False, False, False]
        assert len(optimizer.state) == 1
        assert all(p.grad is not None for p in model.parameters())
        assert self.sent == [(0, 1), (1, 3)]
        assert self.hook.observed() is True

    def test_a_part_of_the_state_is_never_saved_as_the_whole(self, model: Any) -> None:
        optimizer = self.stepped(model)
        with pytest.raises(RuntimeError, match="a part of the optimizer's state"):
            optimizer.state_dict()

    def test_a_step_that_raises_loses_no_gradient(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        optimizer = self.stepped(model)

        def broken(*_: Any) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(optimizer, "_init_group", broken)
            with pytest.raises(RuntimeError, match="planted"):
                optimizer.step()
        assert [p.grad is None for p in model.parameters()] == [False, True, True, True]
        optimizer.step()
        assert all(p.grad is not None for p in model.parameters())

    def test_state_of_a_checkpoint_beyond_the_share_is_dropped(self, model: Any) -> None:
        optimizer = self.stepped(model)
        other = list(model.parameters())[1]
        optimizer.state[other] = {"exp_avg": other.detach().clone()}
        assert self.hook.observed() is False
        optimizer.step()
        assert self.hook.observed() is True
