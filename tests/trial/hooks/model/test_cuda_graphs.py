"""Whether CUDA graphs were recorded, and what is done about the memory they give back."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from autotune.trial.hooks.model.cuda_graphs import CudaGraphs
from autotune.trial.hooks.model.model_outputs import to_float32, unshared


def recordings(*, cuda: bool = True) -> CudaGraphs:
    found = CudaGraphs()
    found.install(SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: cuda)))
    return found


def trees(monkeypatch: pytest.MonkeyPatch, roots: Any) -> None:
    """The part of `torch._inductor.cudagraph_trees` that is read."""
    manager = SimpleNamespace(roots=roots)
    held = {0: SimpleNamespace(tree_manager=manager), 1: SimpleNamespace(tree_manager=None)}
    module = SimpleNamespace(local=object(), get_obj=lambda _local, _name: held)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", module)


def test_a_recorded_graph_is_seen_in_the_compilers_own_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    trees(monkeypatch, {0: ["node"]})
    assert recordings().missing() is None


@pytest.mark.parametrize("roots", [{}, {0: []}, None])
def test_a_tree_without_a_graph_is_no_graph(monkeypatch: pytest.MonkeyPatch, roots: Any) -> None:
    trees(monkeypatch, roots)
    assert recordings().missing() == "No CUDA graph was recorded."


def test_the_compilers_reasons_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    utils = SimpleNamespace(counters={"inductor": {"cudagraph_skips": 2}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    assert recordings().missing() == (
        "No CUDA graph was recorded: the compiler found 2 parts that cannot be."
    )


def test_a_compile_that_says_it_records_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    trees(monkeypatch, {})
    found = recordings()
    found.note(())  # older versions say nothing
    found.note((SimpleNamespace(callback_trigger=SimpleNamespace(name="DYNAMO")),))
    assert found.missing() is not None
    found.note((SimpleNamespace(callback_trigger=SimpleNamespace(name="CUDAGRAPH_RECORDING")),))
    assert found.missing() is None


def test_on_the_cpu_there_are_none_to_miss() -> None:
    assert recordings(cuda=False).missing() is None
    assert CudaGraphs().missing() is None


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_looked_at_exists_in_torch() -> None:
    from torch._dynamo import callback
    from torch._inductor import cudagraph_trees

    if hasattr(callback, "CallbackTrigger"):  # before, nothing reported what kind of compile it is
        assert callback.CallbackTrigger.CUDAGRAPH_RECORDING.name == "CUDAGRAPH_RECORDING"
    assert dict(cudagraph_trees.get_obj(cudagraph_trees.local, "tree_manager_containers")) == {}
    assert "tree_manager" in vars(cudagraph_trees.TreeManagerContainer(0))


class Pair(NamedTuple):
    loss: Any
    logits: Any


class Out(dict[str, Any]):
    """As the outputs of model libraries: a mapping that is built by keywords."""


@pytest.mark.torch
def test_outputs_of_a_graph_get_memory_of_their_own() -> None:
    import torch

    class OnDevice(torch.Tensor):
        is_cuda = property(lambda _: True)  # type: ignore[assignment]

    loss, logits = torch.tensor(1.0).as_subclass(OnDevice), torch.zeros(64, 128).as_subclass(OnDevice)
    for made in (Pair(loss, logits), Out(loss=loss, logits=logits), {"loss": loss, "logits": logits}):
        step = unshared(made, torch, whole=False)
        assert type(step) is type(made)
        kept = tuple(step) if isinstance(step, Pair) else tuple(step.values())
        assert kept[0].data_ptr() != loss.data_ptr()
        assert kept[1].data_ptr() == logits.data_ptr()
        whole = unshared(made, torch, whole=True)
        assert (whole[1] if isinstance(whole, Pair) else whole["logits"]).data_ptr() != logits.data_ptr()
    nested = unshared([loss, (logits, "text", None)], torch, whole=True)
    assert nested[0].data_ptr() != loss.data_ptr()
    assert nested[1][1:] == ("text", None)
    on_cpu = torch.zeros(3)
    assert unshared(on_cpu, torch, whole=True) is on_cpu
    half = to_float32({"a": torch.zeros(2, dtype=torch.bfloat16), "b": on_cpu}, torch)
    assert half["a"].dtype is torch.float32
    assert half["b"] is on_cpu


@pytest.mark.torch
def test_a_gradient_flows_through_what_was_copied() -> None:
    import torch

    class OnDevice(torch.Tensor):
        is_cuda = property(lambda _: True)  # type: ignore[assignment]

    weight = torch.ones(2, requires_grad=True)
    out = unshared((weight * 3).sum().as_subclass(OnDevice), torch, whole=False)
    out.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]
