"""The walk from a dataset to what it holds: which ways it goes, and where it ends."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar

from autotune.trial.hooks.data.object_walk import Walk

COUNT = [0]


class Held:
    shared: ClassVar[list[str]] = ["class"]

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __getitem__(self, index: int) -> int:
        return COUNT[0] + index


class Table(dict[str, Any]):
    """A container with attributes of its own."""


class Slotted:
    __slots__ = ("inside",)


def paths(root: Any) -> dict[str, Any]:
    return {node.path: node.value for node in Walk({"dataset": root}).nodes}


def closing(over: Any) -> Any:
    return lambda: over


def test_attributes_slots_members_closures_and_partial_functions_are_followed() -> None:
    mark = object()
    slotted = Slotted()
    slotted.inside = mark
    ways: dict[str, Any] = {
        "direct": mark,
        "slots": slotted,
        "deep": Held(a=Held(b=[{"key": mark}])),
        "table": Table(),
        "closure": closing(mark),
        "partial": functools.partial(print, end=mark),
        "method": Held(mark=mark).__getitem__,
        "iterator": iter([mark]),
        "cycle": itertools.cycle([mark]),
        "generator": (item for item in [mark]),
    }
    ways["table"].inside = mark
    for name, value in ways.items():
        assert any(found is mark for found in paths(Held(held=value)).values()), name


def test_globals_and_class_attributes_that_the_users_functions_name_are_followed() -> None:
    found = {node.path: node for node in Walk({"dataset": Held()}).nodes}
    assert found["COUNT"].value is COUNT
    assert found["dataset.shared"].value is Held.shared
    assert "COUNT[0]" in found


def test_a_walk_ends_in_circles_and_in_large_structures() -> None:
    circle = Held()
    circle.me = circle
    many = Held(rows=[Held(n=[n]) for n in range(100_000)], more={n: Held() for n in range(100_000)})
    assert len(Walk({"dataset": circle}).nodes) < 50
    assert len(Walk({"dataset": many}).nodes) < 4096


def test_objects_that_answer_with_errors_are_passed_over() -> None:
    class Rude:
        def __getattribute__(self, name: str) -> Any:
            raise KeyError(name)

    mark = object()
    assert any(value is mark for value in paths(Held(rude=Rude(), held=mark)).values())


def test_an_object_that_makes_another_one_when_its_class_is_read_is_left_alone() -> None:
    class Proxy:
        made = 0

        @property
        def __class__(self) -> Any:
            Proxy.made += 1
            raise RuntimeError

    assert Proxy.made == 0
    paths = {node.path for node in Walk({"dataset": [Proxy(), Held(value=1)]}).nodes}
    assert "dataset[1].value" in paths
    assert Proxy.made == 0


def test_what_is_left_in_a_long_iterator_is_not_listed() -> None:
    table = dict.fromkeys(range(100_000))
    nodes = Walk({"dataset": [iter(table)]}).nodes
    assert not any(type(node.value) is list and len(node.value) == len(table) for node in nodes)
    assert any(node.value is table for node in nodes)


def test_only_whole_names_of_packages_are_passed_over() -> None:
    """A user's `logging_utils` is no part of `logging`."""
    mark = object()
    held = {}
    for module in ("logging", "logging.handlers", "logging_utils"):
        value = type("Log", (), {"__module__": module})()
        value.inside = mark
        held[module] = value
    found = [name for name, value in held.items() if any(one is mark for one in paths(value).values())]
    assert found == ["logging_utils"]
