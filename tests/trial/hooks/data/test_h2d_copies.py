"""Which copies are made without waiting, on tensors made up for the purpose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.hooks.data.h2d_copies import H2dCopies
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo


class Device:
    def __init__(self, kind: str) -> None:
        self.type = kind.partition(":")[0]


class Dtype:
    pass


F32, F16 = Dtype(), Dtype()


class Tensor:
    """Remembers how it was copied."""

    def __init__(self, device: str = "cpu", *, pinned: bool = True, dtype: Dtype = F32) -> None:
        self.device, self.dtype, self._pinned = Device(device), dtype, pinned
        self.is_cuda = self.device.type == "cuda"
        self._version = 0
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self.calls.append(("to", args, kwargs))
        return ("copy", *args)

    def cuda(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self.calls.append(("cuda", args, kwargs))
        return ("copy", *args)


OWN = {name: vars(Tensor)[name] for name in ("to", "cuda")}


class World:
    def __init__(self) -> None:
        self.state = RuntimeState(Faults(None), "/somewhere/train.py")
        self.undo = Undo()
        self.lost: list[str] = []
        self.state.lost = lambda knob, _reason: self.lost.append(knob)
        torch = SimpleNamespace(Tensor=Tensor, device=Device, dtype=Dtype)
        self.copies = H2dCopies(self.state, self.undo, torch)

    def batch(self, *tensors: Tensor) -> None:
        self.copies.fetched({"x": tensors[0], "rest": [(t,) for t in tensors[1:]]})


@pytest.fixture
def world():
    made = World()
    yield made
    made.undo.undo_all()
    assert {name: vars(Tensor)[name] for name in OWN} == OWN


def waits(tensor: Tensor) -> bool:
    (_, _, kwargs) = tensor.calls[-1]
    return not kwargs.get("non_blocking", False)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("to", ("cuda",), {}),
        ("to", ("cuda:1",), {}),
        ("to", (Device("cuda"),), {}),
        ("to", (0,), {}),
        ("to", (), {"device": "cuda"}),
        ("to", (Tensor("cuda"),), {}),
        ("to", ("cuda", F32), {}),
        ("cuda", (), {}),
        ("cuda", (0,), {}),
    ],
)
def test_a_pinned_batch_goes_to_the_device_without_waiting(world, name, args, kwargs) -> None:
    world.copies.non_blocking(True)
    tensor, other = Tensor(), Tensor()
    world.batch(tensor, other)
    assert getattr(tensor, name)(*args, **kwargs) == ("copy", *args)
    assert tensor.calls == [(name, args, {**kwargs, "non_blocking": True})]
    assert world.copies.observed() is True


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("cpu",), {}),
        ((Device("cpu"),), {}),
        ((F16,), {}),
        (("cuda", F16), {}),
        ((), {"device": "cuda", "dtype": F16}),
        (("cuda",), {"non_blocking": False}),
        (("cuda", F32, False), {}),
        ((), {}),
        (("meta",), {}),
        ((Tensor("cpu"),), {}),
    ],
)
def test_any_other_copy_is_made_as_the_script_says(world, args, kwargs) -> None:
    world.copies.non_blocking(True)
    tensor = Tensor()
    world.batch(tensor)
    tensor.to(*args, **kwargs)
    assert tensor.calls == [("to", args, kwargs)]


@pytest.mark.parametrize("tensor", [Tensor(pinned=False), Tensor("cuda")])
def test_what_is_not_pinned_or_comes_from_the_device_is_never_touched(world, tensor) -> None:
    world.copies.non_blocking(True)
    world.batch(tensor, Tensor())
    for target in ("cpu", "cuda"):
        tensor.to(target)
        assert tensor.calls[-1] == ("to", (target,), {})
    assert world.copies.observed() is None


def test_results_copied_back_from_the_device_wait(world) -> None:
    world.copies.non_blocking(True)
    world.batch(Tensor())
    loss = Tensor("cuda", pinned=False)
    loss.to("cpu")
    assert waits(loss)


def test_tensors_that_no_loader_yielded_are_left_alone(world) -> None:
    world.copies.non_blocking(True)
    world.batch(Tensor())
    buffer = Tensor()
    buffer.to("cuda")
    assert waits(buffer)


def test_the_scripts_own_way_is_read_where_nothing_is_requested(world) -> None:
    first, second = Tensor(), Tensor()
    world.batch(first, second)
    assert world.copies.observed() is None
    first.to("cuda", non_blocking=True)
    assert world.copies.observed() is True
    second.cuda()
    assert waits(second)
    assert world.copies.observed() is False


def test_one_copy_that_waits_by_the_scripts_word_means_it_was_not_applied(world) -> None:
    world.copies.non_blocking(True)
    first, second = Tensor(), Tensor()
    world.batch(first, second)
    first.to("cuda")
    second.to("cuda", non_blocking=False)
    assert world.copies.observed() is False


def test_a_batch_that_is_written_to_after_its_copy_is_found_out(world) -> None:
    world.copies.non_blocking(True)
    tensor = Tensor()
    world.batch(tensor)
    tensor._version += 1
    tensor.to("cuda")
    world.batch(Tensor())
    assert world.lost == []
    again = Tensor()
    world.batch(again)
    again.to("cuda")
    again._version += 1
    world.batch(Tensor())
    assert world.lost == ["non_blocking"]
    assert "changes a batch in place" in world.state.refusals["non_blocking"]
    assert world.copies.observed() is False


def test_nothing_is_replaced_before_a_pinned_batch_and_nothing_in_a_child(world) -> None:
    world.copies.non_blocking(True)
    world.batch(Tensor(pinned=False))
    assert vars(Tensor)["to"] is OWN["to"]
    tensor = Tensor()
    world.batch(tensor)
    assert vars(Tensor)["to"] is not OWN["to"]
    world.state.active = False
    tensor.to("cuda")
    assert waits(tensor)


class Graphs:
    """As some graph libraries' batches: `keys` is a property."""

    keys = ("x",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: str) -> Tensor:
        return {"x": self._tensor}[key]


class Unreadable(Graphs):
    def __getitem__(self, key: str) -> Tensor:
        raise RuntimeError("not now")


def test_a_batch_that_reports_its_keys_by_a_property_is_copied_as_any_other(world) -> None:
    tensor = Tensor()
    world.copies.non_blocking(True)
    world.copies.fetched(Graphs(tensor))
    tensor.to("cuda")
    assert not waits(tensor)


def test_a_batch_that_cannot_be_read_costs_nothing_but_these_copies(world) -> None:
    world.copies.fetched(Unreadable(Tensor()))
    assert "copies" in world.state.faults.off


def test_dropped_batches_are_forgotten(world) -> None:
    world.batch(Tensor(), Tensor())
    assert world.copies._pinned == {}


def test_once_let_go_of_copies_are_the_scripts_own_again(world) -> None:
    one = Tensor()
    world.batch(one)
    assert vars(Tensor)["to"] is not OWN["to"]
    world.copies.let_go()
    assert {name: vars(Tensor)[name] for name in OWN} == OWN
    one.to("cuda")
    assert waits(one)
