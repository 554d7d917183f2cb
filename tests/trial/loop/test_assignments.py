"""Which assignments of a loop change what a fetch reads, looked up in the frames of a backward pass."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from autotune.trial.loop.assignments import find
from autotune.trial.records.fetch_state import FetchReads

if TYPE_CHECKING:
    from collections.abc import Callable


class Noise:
    level = 0.0

    def __call__(self, x: float) -> float:
        return x + self.level

    def set(self, level: float) -> None:
        self.level = level


class Data:
    def __init__(self) -> None:
        self.transform, self.seen = Noise(), 0

    def __getitem__(self, i: int) -> float:
        return self.transform(float(i))


class Loader:
    def __init__(self) -> None:
        self.dataset = Data()

    def __iter__(self) -> Any:
        return iter(range(2))


class Seen(Exception):
    pass


def found_in(loop: Callable[[Loader, Callable[[], None]], None]) -> str:
    """What is found where the loop calls its second argument for the first time."""
    loader, reported = Loader(), []

    def backward() -> None:
        frame, frames = sys._getframe(1), []
        while frame is not None and frame.f_code is not found_in.__code__:
            frames.append(frame)
            frame = frame.f_back
        reported.append(find(frames, FetchReads(loader.dataset), loader, lambda file, line: "here"))
        raise Seen

    with contextlib.suppress(Seen):
        loop(loader, backward)
    (one,) = reported
    return "" if one is None else f"{one.when}: {one.text}"


def test_an_assignment_inside_a_pass_and_one_between_two() -> None:
    def inside(loader: Loader, backward: Callable[[], None]) -> None:
        noise = loader.dataset.transform
        for epoch in range(2):
            for _ in enumerate(loader):
                backward()
                noise.level = epoch

    def between(loader: Loader, backward: Callable[[], None]) -> None:
        for epoch in range(2):
            if epoch == 1:
                loader.dataset.transform.level = 1.0
            for _ in loader:
                backward()

    assert found_in(inside) == "inside: noise.level (here)"
    assert found_in(between) == "between: loader.dataset.transform.level (here)"


def test_workers_of_an_iterator_that_outlives_the_outer_loop_never_see_a_change() -> None:
    def steps(loader: Loader, backward: Callable[[], None]) -> None:
        batches, noise = iter(loader), loader.dataset.transform
        for epoch in range(2):
            noise.level = epoch
            for _ in range(1):
                next(batches)
                backward()

    assert found_in(steps).startswith("inside: noise.level")


def test_functions_that_the_loop_calls_are_followed() -> None:
    def close(data: Data) -> None:
        data.transform.set(0.0)

    def late(loader: Loader, backward: Callable[[], None]) -> None:
        for epoch in range(9):
            if epoch == 8:
                close(loader.dataset)
            for _ in loader:
                backward()

    assert found_in(late) == "between: self.level (here)"


def test_what_no_fetch_reads_and_what_lies_outside_of_the_loop_is_no_reason() -> None:
    def fine(loader: Loader, backward: Callable[[], None]) -> None:
        loader.dataset.transform.level = 0.5
        sampler = SimpleNamespace(epoch=0)
        for epoch in range(2):
            sampler.epoch = epoch
            for x in loader:
                backward()
                loader.dataset.seen += x
        loader.dataset.transform.level = 0.0

    assert found_in(fine) == ""


def test_a_branch_whose_switch_is_off_is_no_reason() -> None:
    def off(loader: Loader, backward: Callable[[], None]) -> None:
        args = SimpleNamespace(curriculum=False)
        for epoch in range(2):
            if args.curriculum:
                loader.dataset.transform.level = epoch
            for _ in loader:
                backward()

    def on_later(loader: Loader, backward: Callable[[], None]) -> None:
        strong = False
        for epoch in range(2):
            if strong:
                loader.dataset.transform.level = epoch
            strong = epoch > 0
            for _ in loader:
                backward()

    def by_mode(loader: Loader, backward: Callable[[], None]) -> None:
        args = SimpleNamespace(mode="plain", strong=True)
        for epoch in range(2):
            for _ in loader:
                backward()
                if args.mode == "curriculum" and epoch == 1:
                    loader.dataset.transform.level = epoch
                if not args.strong or args.mode != "plain":
                    loader.dataset.transform.level = epoch

    def by_epoch(loader: Loader, backward: Callable[[], None]) -> None:
        for epoch in range(2):
            for _ in loader:
                backward()
                if epoch == 1:
                    loader.dataset.transform.level = epoch

    assert found_in(off) == found_in(by_mode) == ""
    assert found_in(by_epoch).startswith("inside")
    assert found_in(on_later).startswith("between")
