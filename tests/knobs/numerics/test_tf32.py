"""`tf32`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from knob_facts import gpu

from autotune.knobs.numerics.tf32 import Tf32
from autotune.model.facts import DeviceFacts
from autotune.testing.knobs import GPU_HOST, GPU_RUN, KnobContract, facts

KNOB = Tf32()


class TestTf32(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "NVIDIA devices only"),
        (facts(host=gpu(7, 5), run=GPU_RUN), "no TF32"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts(host=GPU_HOST, run=GPU_RUN)) is None


def test_the_device_that_trained_decides_and_not_all_that_are_there() -> None:
    old = DeviceFacts(name="old", uuid="GPU-2", memory_bytes=1, capability=(7, 5))
    both = replace(GPU_HOST, devices=(*GPU_HOST.devices, old))
    assert KNOB.refuse(facts(host=both, run=GPU_RUN)) is not None
    assert KNOB.refuse(facts(host=both, run=replace(GPU_RUN, devices=GPU_HOST.devices))) is None


def process(newer: str | None, older: str | None) -> Any:
    """A torch whose older interface raises where the two disagree, as it does since 2.9."""

    def get() -> str:
        if older is None:
            raise RuntimeError("mix of the legacy and new APIs")
        return older

    matmul = SimpleNamespace() if newer is None else SimpleNamespace(fp32_precision=newer)
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul))
    return SimpleNamespace(torch=SimpleNamespace(backends=backends, get_float32_matmul_precision=get))


@pytest.mark.parametrize(
    ("newer", "older", "seen"),
    [
        (None, "high", "high"),
        ("tf32", "high", "high"),
        ("tf32", "medium", "medium"),
        ("none", "highest", "highest"),
        ("tf32", None, "high"),  # the script used the newer interface alone
        ("ieee", None, "highest"),
        ("ieee", "high", "highest"),  # ours was taken back by the newer interface, the older does not know
    ],
)
def test_what_the_device_really_does_is_read(newer: str | None, older: str | None, seen: str) -> None:
    assert KNOB.seen(process(newer, older)) == seen
