"""The built-in knobs by name, and those of other packages."""

import re
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.knobs import registry
from autotune.knobs.numerics.precision import Precision
from autotune.knobs.registry import builtin, named


def test_no_built_in_knob_goes_missing() -> None:
    assert set(builtin()) >= {
        "precision",
        "num_workers",
        "compile_mode",
        "tf32",
        "attention_backend",
        "channels_last",
        "batch_size",
        "effective_batch",
        "accumulation",
        "fused_optimizer",
        "threads",
        "wait_policy",
        "malloc",
        "prefetch_factor",
        "pin_memory",
        "non_blocking",
        "persistent_workers",
        "cudnn_benchmark",
        "activation_checkpointing",
        "memory_budget",
        "allocator",
        "compile_region",
        "compile_shapes",
        "set_to_none",
        "gc_control",
        "mp_context",
        "in_order",
        "pure_bf16",
        "fp8",
    }


def test_every_file_of_a_knob_is_registered_under_its_own_name() -> None:
    files = Path(registry.__file__).parent.rglob("*.py")
    knobs = {file.stem for file in files if "(Knob):\n" in file.read_text(encoding="utf-8")}
    helpers = {"compiled", "declared", "deepspeed_knob", "loader_keyword", "nccl_knob", "wrapper_knob"}
    assert knobs - helpers <= set(builtin())
    assert all(type(knob).__module__.endswith(f".{name}") for name, knob in builtin().items())


@pytest.mark.parametrize("name", builtin())
def test_every_knob_goes_through_the_contract_in_a_file_of_its_own(name: str) -> None:
    (file,) = Path(__file__).parent.rglob(f"test_{name}.py")
    text = file.read_text(encoding="utf-8")
    assert re.search(r"^class Test\w+\(KnobContract\):$", text, re.MULTILINE)
    assert re.search(rf"autotune\.knobs\.\w+\.{name} import ", text)


def test_two_knobs_of_one_name_are_an_error() -> None:
    with pytest.raises(UsageError, match='two knobs are called "precision"'):
        named([Precision(), Precision()])


class _Point:
    name, value = "mine", "mine:thing"

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def load(self) -> object:
        if isinstance(self.thing, Exception):
            raise self.thing
        return self.thing


class Extra(Precision):
    """A knob of another package: it exists for this test alone.

    Effect: NUMERIC. Unit: none. Source: none.
    """

    name = "extra"


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (int, "is not a Knob class"),
        (ImportError("gone"), "cannot be loaded: gone"),
        (Precision, "two knobs are called"),
    ],
)
def test_a_bad_entry_point_is_a_usage_error_that_names_it(monkeypatch, thing, message) -> None:
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [_Point(thing)])
    with pytest.raises(UsageError, match=message):
        builtin.__wrapped__()


def test_knobs_of_other_packages_come_last(monkeypatch) -> None:
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [_Point(Extra)])
    assert list(builtin.__wrapped__())[-1] == "extra"
