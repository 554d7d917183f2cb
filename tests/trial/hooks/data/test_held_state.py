"""What a fetch changes: which state is seen to move, what is left out, and its reported place."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import mmap
import random
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.trial.hooks.data.held_state import StateSnapshot, described

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


class Data:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __getitem__(self, index: int) -> float:
        self.count = index
        return self.rng.random()


def moved(data: Any, change: Callable[[Any], Any]) -> list[tuple[str, str]]:
    before = StateSnapshot({"dataset": data}, torch)
    change(data)
    after = StateSnapshot({"dataset": data}, torch)
    return [(piece.kind, piece.node.path) for piece in after.moved_since(before)]


@pytest.mark.parametrize(
    ("make", "change", "kind"),
    [
        (lambda: np.random.default_rng(0), lambda d: d.held.normal(), "generator"),
        (lambda: np.random.RandomState(0), lambda d: d.held.rand(), "generator"),
        (lambda: random.Random(0), lambda d: d.held.random(), "generator"),
        (torch.Generator, lambda d: torch.rand(1, generator=d.held), "generator"),
        (lambda: iter([1, 2, 3]), lambda d: next(d.held), "cursor"),
        (lambda: (n for n in range(3)), lambda d: next(d.held), "cursor"),
        (lambda: io.BytesIO(b"abc"), lambda d: d.held.read(1), "cursor"),
        (lambda: itertools.cycle([1, 2]), lambda d: next(d.held), "cursor"),
        (lambda: csv.reader(iter(["a", "b"])), lambda d: next(d.held), "cursor"),
        (lambda: enumerate("ab"), lambda d: next(d.held), "cursor"),
        (lambda: mmap.mmap(-1, 16), lambda d: d.held.read(1), "cursor"),
        (int, lambda d: setattr(d, "held", 1), "value"),
        (list, lambda d: d.held.append(1), "container"),
        (dict, lambda d: d.held.update(a=1), "container"),
        (lambda: {1: None}, lambda d: (d.held.pop(1), d.held.update({2: None})), "container"),
        (lambda: {1, 2}, lambda d: (d.held.remove(1), d.held.add(3)), "container"),
        (lambda: deque([1, 2]), lambda d: d.held.append(3), "container"),
        (lambda: functools.cache(abs), lambda d: d.held(-1), "container"),
        (lambda: [0] * 100, lambda d: d.held.__setitem__(50, 1), "container"),
        (lambda: np.zeros(1000), lambda d: d.held.__setitem__(500, 1.0), "array"),
        (lambda: torch.zeros(1000), lambda d: d.held.__setitem__(500, 1.0), "array"),
    ],
)
def test_state_that_changes_is_seen_at_any_depth(make: Any, change: Any, kind: str) -> None:
    assert moved(Data(held=make()), lambda _: None) == []
    (first, path), *_ = moved(Data(held=make()), change)
    assert (first, path.partition("[")[0]) == (kind, "dataset.held")
    deep = Data(transform=SimpleNamespace(steps=[Data(held=make())]))
    assert moved(deep, lambda d: change(d.transform.steps[0]))[0][0] == kind


def test_the_generators_that_a_loader_seeds_in_each_worker_are_left_out() -> None:
    data = Data(
        a=random._inst, b=np.random.mtrand._rand, c=torch.default_generator, d=random.random, e=np.random.rand
    )

    def draw(_: Any) -> None:
        random.random()
        np.random.rand()
        torch.rand(1)

    assert moved(data, draw) == []


def test_a_generator_is_named_before_a_counter_and_with_its_place() -> None:
    data = Data(count=0, rng=np.random.default_rng(0))
    before = StateSnapshot({"dataset": data}, torch)
    data[3]
    after = StateSnapshot({"dataset": data}, torch)
    first, second = after.moved_since(before)

    def place(file: str, line: int) -> str:
        return f"{file.rpartition('/')[2]}:{line}"

    text = described(first, after.codes, place)
    assert text.startswith("your dataset draws from its own generator (rng) at test_held_state.py:")
    assert int(text.rpartition(":")[2]) == Data.__getitem__.__code__.co_firstlineno + 2
    assert described(second, after.codes, place).startswith("your dataset changes what it holds (count) at")
