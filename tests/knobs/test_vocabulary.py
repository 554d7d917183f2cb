"""Values that can mean nothing to a knob are distinguished from those that mean nothing here."""

from __future__ import annotations

import pytest

from autotune.knobs.numerics.precision import Precision
from autotune.knobs.registry import builtin
from autotune.knobs.vocabulary import meaningless, words
from autotune.testing.knobs import example_facts


@pytest.mark.parametrize("name", builtin())
def test_whatever_a_knob_tries_means_something(name: str) -> None:
    knob = builtin()[name]
    for facts in example_facts():
        own = knob.own(facts)
        tried = [value for value in knob.domain(facts) if value != own]
        assert meaningless(knob, ["asis", *tried]) is None


@pytest.mark.parametrize("name", builtin())
def test_what_no_machine_could_give_a_meaning_is_found(name: str) -> None:
    knob = builtin()[name]
    assert meaningless(knob, ["asis", "no such value", -7]) == "no such value"
    assert meaningless(knob, [-7]) == -7


def test_words_of_a_knob_are_those_of_all_machines() -> None:
    assert set(words(builtin()["precision"])) == {"fp32", "bf16", "fp16"}
    assert set(words(builtin()["pin_memory"])) == {"false", "true"}
    assert words(builtin()["num_workers"]) == ()


class Foreign(Precision):
    """A knob of another package: it exists for this test alone.

    Effect: NUMERIC. Unit: none. Source: none.
    """


def test_a_knob_of_another_package_judges_its_values_itself() -> None:
    assert meaningless(Foreign(), ["int4"]) is None
