"""Counts of steps that another batch of the loader would not reach."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.trial.loop.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, BATCH = 64, 8


class Seen(Exception):
    pass


def counted(loop: Callable[[Callable[[], None]], None], *, length: int = 8) -> str:
    """The facts of a loop whose loader has so many batches, where it calls its argument."""
    schedules = Schedules(lambda file, line: "here")

    def backward() -> None:
        frame, frames = sys._getframe(1), []
        while frame is not None and frame.f_code is not counted.__code__:
            frames.append(frame)
            frame = frame.f_back
        schedules.note_loop(frames)
        raise Seen

    with contextlib.suppress(Seen):
        loop(backward)
    return schedules.fixed(length, per_step=False, counted=True)


def test_a_pass_of_as_many_batches_as_the_loader_has_is_counted_by_a_constant() -> None:
    def by_arithmetic(backward: Callable[[], None]) -> None:
        for _ in range(3):
            for _ in range(ROWS // BATCH):
                backward()

    def by_setting(backward: Callable[[], None]) -> None:
        config = {"batches": 8}
        for _ in enumerate(range(config["batches"])):
            backward()

    assert counted(by_arithmetic) == counted(by_setting) == "a pass of 8 batches (here)"
    assert counted(by_arithmetic, length=10) == ""


def test_a_number_of_steps_that_has_nothing_to_do_with_the_loader_is_none() -> None:
    def steps(backward: Callable[[], None]) -> None:
        for _ in range(1000):
            backward()

    def batches(backward: Callable[[], None]) -> None:
        for _ in [1, 2, 3]:
            backward()

    assert counted(steps) == counted(batches) == ""


SCRIPT = (
    PRELUDE
    + """
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
total = TOTAL
model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=total)
done = 0
for epoch in range(20):
    for (x,) in loader:
        opt.zero_grad(); model(x).square().mean().backward(); opt.step(); schedule.step()
        done += 1
        ENDS
"""
)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("total", "ends", "found"),
    [
        ("64 // 8 * 20", "pass", "OneCycleLR of 160 steps (train.py:"),
        ("20 * len(loader)", "pass", ""),
        ("160", "if done >= total: sys.exit()", ""),
    ],
)
def test_a_schedule_follows_the_loader_or_the_count_that_ends_the_loop_or_neither(
    run: Callable[..., Any], total: str, ends: str, found: str
) -> None:
    ran = run(SCRIPT.replace("TOTAL", total).replace("ENDS", ends))
    assert ran.faults == ""
    assert ran.facts.fixed_steps.startswith(found)
    assert bool(ran.facts.fixed_steps) is bool(found)


def test_only_a_count_of_whole_passes_is_taken_for_one_by_the_batch_size() -> None:
    def both(backward: Callable[[], None]) -> None:
        for _ in range(3 * ROWS // BATCH):
            backward()

    assert counted(both) == counted(both, length=12) == "a pass of 24 batches (here)"
    assert counted(both, length=10) == ""
