"""Questions to the script's objects and frames that leave no trace in them."""

from __future__ import annotations

import sys
from typing import Any

from autotune.trial.records.objects import held_by, locals_of, names_of


def test_an_object_that_loads_itself_when_it_is_requested_is_not_requested() -> None:
    class Lazy:
        def __init__(self) -> None:
            object.__setattr__(self, "path", "a")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    assert held_by(Lazy()) == {"path": "a"}
    assert held_by(3) == {}


def test_the_dictionary_of_a_functions_own_locals_is_not_filled_or_emptied() -> None:
    def configured(rate: float) -> dict[str, Any]:
        config = locals()
        model = object()
        held = locals_of(sys._getframe())
        assert model is held.get("model", model)
        return config

    assert configured(0.1) == {"rate": 0.1}


def test_a_class_keeps_what_was_defined_while_its_body_was_read() -> None:
    class Trainer:
        rate = 0.1
        seen = names_of(sys._getframe())["rate"]

    assert Trainer.seen == Trainer.rate == 0.1


def test_a_suspended_generator_holds_no_more_than_before() -> None:
    def batches() -> Any:
        large = [1]
        yield sys.getrefcount(large)
        yield sys.getrefcount(large)

    it = batches()
    before = next(it)
    assert locals_of(it.gi_frame) == {"large": [1]}
    assert next(it) == before
