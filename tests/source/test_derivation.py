"""Names that a number is computed from."""

from __future__ import annotations

import ast

import pytest

from autotune.source.derivation import argument, assigned_values, computed_from, last_name

SOURCE = """
cfg["steps"] = cfg["rows"] // BATCH
total = int(cfg["steps"] * epochs) - warm
optimizer = Adam(model.parameters(), lr=0.1 * BATCH)

def scaled(step):
    return step / total
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("total", {"total", "cfg['steps']", "cfg['rows']", "BATCH", "epochs", "warm"}),
        ("optimizer", {"optimizer"}),
        ("epochs * len(loader)", {"epochs"}),
        ("scaled(3)", {"step", "total", "cfg['steps']", "cfg['rows']", "BATCH", "epochs", "warm"}),
        ("lambda step: step / warm", {"step", "warm"}),
    ],
)
def test_arithmetic_is_followed_and_arguments_of_other_calls_are_not(text: str, names: set[str]) -> None:
    values = assigned_values(ast.parse(SOURCE))
    assert computed_from([ast.parse(text, mode="eval").body], values) == names


@pytest.mark.parametrize(
    ("text", "name"), [("BATCH", "BATCH"), ("a.train.batch", "batch"), ("cfg['rows']", "rows")]
)
def test_the_last_name_of_an_expression_is_that_of_an_attribute_or_an_entry(text: str, name: str) -> None:
    assert last_name(text) == name


@pytest.mark.parametrize(
    ("call", "given"), [("f(1, 2)", "2"), ("f(1, n=3)", "3"), ("f(1)", None), ("f(*a, 2)", None)]
)
def test_an_argument_is_found_by_position_or_by_name(call: str, given: str | None) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    found = argument(node, 1, "n")
    assert (None if found is None else ast.unparse(found)) == given
