"""`allocator`: the contract, the facts that refuse it, the name of its variable, and what it reads."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autotune.knobs.memory.allocator import Allocator
from autotune.model.change import Env
from autotune.model.config import Config
from autotune.space.choose_delivery import choose
from autotune.testing.knobs import GPU_HOST, GPU_RUN, LOADER, FakePatches, KnobContract, facts

KNOB = Allocator()


def on_gpu(torch: str = "2.13.0", **values: object):
    versions = {"torch": torch} if torch else {}
    return facts(host=GPU_HOST, run=replace(GPU_RUN, values={**GPU_RUN.values, **values}, versions=versions))


class TestAllocator(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(), "training runs on the CPU"),
        (on_gpu(allocator="cudaMallocAsync"), "asynchronous allocator"),
        (facts(host=GPU_HOST, run=replace(GPU_RUN, loader=replace(LOADER, cuda_tensors=True))), "share"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(on_gpu()) is None


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ("2.6.0", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.9.1+cu128", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.11.0", "PYTORCH_ALLOC_CONF"),
        ("2.13.0", "PYTORCH_ALLOC_CONF"),
        ("", "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_the_version_decides_the_name_that_is_really_read(torch, name) -> None:
    (change,), () = choose(Config({"allocator": "expandable_segments"}), on_gpu(torch), {"allocator": KNOB})
    assert change.spelling == Env(name)
    assert change.delivered == "expandable_segments:True"


@pytest.mark.parametrize(
    ("own", "values"),
    [
        ("default", ("default", "expandable_segments")),
        ("garbage_collection", ("garbage_collection", "expandable_segments")),
        ("expandable_segments", ("expandable_segments",)),
    ],
)
def test_what_the_user_has_set_is_kept_and_not_varied(own, values) -> None:
    assert KNOB.domain(on_gpu(allocator=own)) == values


def reading(*, started: bool = True, backend: str = "native", **settings: object):
    patches = FakePatches()
    known = {"expandable_segments": False, "garbage_collection_threshold": 0.0, **settings}
    patches.torch.cuda = SimpleNamespace(
        is_initialized=lambda: started,
        get_allocator_backend=lambda: backend,
        memory=SimpleNamespace(_snapshot=lambda: {"allocator_settings": known}),
    )
    return KNOB.seen(patches)


def test_it_reads_what_the_allocator_has_and_not_the_variable(monkeypatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert reading(started=False) is None
    assert reading() == "default"
    assert reading(expandable_segments=True) == "expandable_segments"
    assert reading(garbage_collection_threshold=0.8) == "garbage_collection"
    assert reading(expandable_segments=True, garbage_collection_threshold=0.6) == "expandable_segments"
    assert reading(backend="cudaMallocAsync") == "cudaMallocAsync"


def test_a_setting_that_acts_only_below_a_memory_limit_is_read_and_never_tried() -> None:
    assert KNOB.resolve("garbage_collection", on_gpu(allocator="default")) is None
    own = on_gpu(allocator="garbage_collection")
    assert KNOB.resolve("garbage_collection", own) == "garbage_collection"
    assert KNOB.environment("garbage_collection", Env("PYTORCH_ALLOC_CONF"), own) is None
