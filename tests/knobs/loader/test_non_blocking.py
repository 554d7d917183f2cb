"""`non_blocking`: the contract, the facts that refuse it, and its tie to pinned memory."""

from dataclasses import replace

import pytest

from autotune.knobs.loader.non_blocking import NonBlocking
from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.study import SpaceRequest
from autotune.space.build_space import build_space
from autotune.testing.knobs import GPU_HOST, GPU_RUN, LOADER, KnobContract, facts

KNOB = NonBlocking()


def on_gpu(*, pinned: bool = False, **values: object):
    loader = replace(LOADER, pin_memory=pinned)
    known = {**GPU_RUN.values, "pin_memory": pinned, **values}
    return facts(host=GPU_HOST, run=replace(GPU_RUN, loader=loader, values=known))


class TestNonBlocking(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "training runs on the CPU"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, loader=None)), "No training DataLoader"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(on_gpu()) is None


def test_it_goes_with_pinned_batches_alone() -> None:
    requested = Config({"non_blocking": True})
    both = Config({"non_blocking": True, "pin_memory": True})
    assert KNOB.settle(requested, on_gpu()) == Config()
    assert KNOB.settle(both, on_gpu()) == both
    assert KNOB.settle(requested, on_gpu(pinned=True)) == requested
    unpinned = Config({"non_blocking": True, "pin_memory": False})
    assert KNOB.settle(unpinned, on_gpu(pinned=True)) == Config({"pin_memory": False})
    assert "does not pin" in (KNOB.idle(on_gpu(), ("non_blocking",)) or "")
    assert KNOB.idle(on_gpu(), ("non_blocking", "pin_memory")) is None
    assert KNOB.idle(on_gpu(pinned=True), ("non_blocking",)) is None


def test_waiting_is_the_scripts_own_way_where_none_of_its_batches_was_pinned() -> None:
    """Or else pinned batches would be tried twice, once with a change that changes nothing."""
    assert KNOB.own(on_gpu()) is False
    assert KNOB.own(facts(host=GPU_HOST, run=None)) is None
    request = SpaceRequest(name="t", knobs={"pin_memory": (), "non_blocking": ()})
    space, _ = build_space(request, on_gpu(), builtin())
    assert set(space.enumerate()) == {
        Config(),
        Config({"pin_memory": True}),
        Config({"pin_memory": True, "non_blocking": True}),
    }


def test_what_the_script_does_itself_is_not_taken_back() -> None:
    assert KNOB.domain(on_gpu(non_blocking=True)) == (True,)
    assert KNOB.resolve(False, on_gpu(non_blocking=True)) is None
    assert KNOB.resolve("on", on_gpu()) is True
