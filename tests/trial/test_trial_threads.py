"""Training in a thread that the script starts: not measured, and reported as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

THREADED = (
    PRELUDE
    + """
import threading, itertools
def train(steps):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in steps:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
thread = threading.Thread(target=train, args=({steps},))
thread.start()
{meanwhile}
thread.join()
reported(ended=True)
"""
)


@pytest.mark.parametrize("steps", ["range(5)", "itertools.count()"])
def test_training_in_a_thread_is_named_and_an_endless_one_is_ended(
    run: Callable[..., Any], steps: str
) -> None:
    ran = run(THREADED.format(steps=steps, meanwhile=""), fidelity=SHORT)
    assert ran.broke.kind == "no_metric"
    assert "main thread, but in another thread" in ran.broke.message
    assert ran.faults == ""


def test_what_trains_beside_the_scripts_own_steps_is_left_alone(run: Callable[..., Any]) -> None:
    ran = run(THREADED.format(steps="range(300)", meanwhile="train(range(3000))"), fidelity=SHORT)
    assert ran.closed is not None
    assert ran.faults == ""
