"""Passes of scripts that make their batches themselves, and steps made of parts that end with them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Constant, Patch
from autotune.trial.loop.own_pass import OwnPass, Pass, pass_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

BATCH_SIZE = 8
ROWS = [0.0] * 100
CONFIG = {"train": {"batch_size": 8}}


class Seen(Exception):
    pass


def passed(loop: Callable[[Callable[[], None]], None]) -> Pass | None:
    """The pass that is found for a loop which calls its argument."""
    found: list[Pass | None] = []

    def backward() -> None:
        frame, frames = sys._getframe(1), []
        while frame is not None and frame.f_code is not passed.__code__:
            frames.append(frame)
            frame = frame.f_back
        found.append(pass_at(frames, BATCH_SIZE))
        raise Seen

    with contextlib.suppress(Seen):
        loop(backward)
    return found[0]


def strides(rows: list[float], size: int) -> Iterator[list[float]]:
    order = list(rows)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def whole_batches(rows: list[float], size: int = 8) -> Iterator[list[float]]:
    for start in range(0, len(rows) - size + 1, size):
        yield rows[start : start + size]


def long_enough(rows: list[float], size: int) -> Iterator[list[float]]:
    for start in range(0, len(rows), size):
        if len(rows) - start < size:
            continue
        yield rows[start : start + size]


class Batches:
    def __init__(self, rows: list[float], batch_size: int) -> None:
        self.rows, self.batch_size = rows, batch_size

    def __iter__(self) -> Iterator[list[float]]:
        for at in range(len(self.rows) // self.batch_size):
            yield self.rows[at * self.batch_size :]


def test_a_pass_is_found_in_the_loop_over_it() -> None:
    def by_stride(backward: Callable[[], None]) -> None:
        for _ in range(3):
            for first in range(0, len(ROWS), BATCH_SIZE):
                _ = ROWS[first : first + BATCH_SIZE]
                backward()

    def by_split(backward: Callable[[], None]) -> None:
        for _ in torch.randperm(100).split(BATCH_SIZE):
            backward()

    def by_generator(backward: Callable[[], None]) -> None:
        for _ in enumerate(strides(ROWS, CONFIG["train"]["batch_size"])):
            backward()

    assert passed(by_stride) == passed(by_split) == passed(by_generator) == Pass(100, drops_rest=False)


def test_a_pass_of_whole_batches_alone_is_one_that_drops_its_rest() -> None:
    def by_count(backward: Callable[[], None]) -> None:
        many = len(ROWS) // BATCH_SIZE
        for _ in range(many):
            backward()

    def by_generator(backward: Callable[[], None]) -> None:
        for _ in whole_batches(ROWS, size=BATCH_SIZE):
            backward()

    def by_object(backward: Callable[[], None]) -> None:
        batches = Batches(ROWS, 8)
        for _ in batches:
            backward()

    assert passed(by_count) == passed(by_generator) == passed(by_object) == Pass(100, drops_rest=True)


def test_loops_that_do_not_follow_the_size_of_a_batch_have_no_pass() -> None:
    def by_steps(backward: Callable[[], None]) -> None:
        for _ in range(1000):
            backward()

    def by_condition(backward: Callable[[], None]) -> None:
        while True:
            backward()

    def left_out(backward: Callable[[], None]) -> None:
        for _ in long_enough(ROWS, BATCH_SIZE):
            backward()

    def drawn(backward: Callable[[], None]) -> None:
        for _ in range(0, len(ROWS), BATCH_SIZE):  # the last batch may be as large as the others
            backward()

    def another_number(backward: Callable[[], None]) -> None:
        eights = 8
        for first in range(0, len(ROWS), eights):
            _ = ROWS[first : first + eights]
            backward()

    assert [passed(f) for f in (by_steps, by_condition, left_out, drawn, another_number)] == [None] * 5


def test_a_batch_that_the_source_does_not_show_is_named() -> None:
    own = OwnPass()
    assert "not seen in the source" in str(own.part(8, 8))
    own._found = Pass(20, drops_rest=False)
    assert [own.part(size, 8) for size in (8, 8, 4)] == [
        (8, 8, 2, False),
        (8, 8, 1, False),
        (4, 8, 0, False),
    ]
    assert own.begins
    assert "A batch of 4 samples" in str(own.part(4, 8))


SCRIPT = (
    PRELUDE
    + """
BATCH_SIZE = 32
torch.manual_seed(0)
x = torch.randn(ROWS, 6)
y = x.sum(1, keepdim=True)
net = nn.Linear(6, 1)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
sizes = []
for epoch in range(12):
    order = torch.randperm(len(x))
    for start in range(0, END, BATCH_SIZE):
        rows = order[start:start + BATCH_SIZE]
        opt.zero_grad(); F.mse_loss(net(x[rows]), y[rows]).backward(); opt.step()
        sizes.append(len(rows))
reported(sizes=sizes[:9], steps=int(next(iter(opt.state.values()))["step"]), last=weights(net))
"""
)


@pytest.mark.parametrize(
    ("rows", "end"), [(130, "len(x)"), (160, "len(x)"), (150, "len(x) - BATCH_SIZE + 1")]
)
def test_steps_of_parts_are_those_of_whole_batches_to_the_end_of_each_pass(
    run: Callable[..., Any], rows: int, end: str
) -> None:
    text = SCRIPT.replace("ROWS", str(rows)).replace("END", end)
    own = run(text, batch=32)
    assert own.facts.pass_samples == rows
    site = own.facts.inputs.place
    spelling = Constant(("BATCH_SIZE",), file="train.py", line=16, was=32)
    parts = [
        Change(knob="batch_size", value=8, spelling=spelling, site=site),
        Change(knob="accumulation", value=4, spelling=Patch()),
    ]
    for measure in (True, False):
        tuned = run(text, changes=parts, batch=32, measure=measure)
        assert (tuned.code, tuned.faults) == (0, ""), tuned.err
        assert tuned.reported["sizes"][:3] == [8, 8, 8]
        assert tuned.reported["steps"] == own.reported["steps"]
        assert tuned.reported["last"] == pytest.approx(own.reported["last"], abs=1e-5)


def test_a_second_loop_that_trains_leaves_the_pass_unknown(run: Callable[..., Any]) -> None:
    text = SCRIPT.replace("ROWS", "160").replace("END", "len(x)")
    more = text.replace("reported(sizes", "for _ in range(3):\n    net(x).mean().backward()\nreported(sizes")
    assert run(more, batch=32).facts.pass_samples == 0
