"""Readings of requested knobs, and their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Flag

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

WIDE = (
    PRELUDE
    + """
import argparse
ap = argparse.ArgumentParser()
ap.add_argument("--batch-size", type=int, default=4)
size = ap.parse_args().batch_size
data = TensorDataset(torch.randn(640, 6))
few, many = DataLoader(data, batch_size=size), DataLoader(data, batch_size=size * 5)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
done = 0
for epoch in range(9):
    for (a,), (b,) in zip(few, many):
        opt.zero_grad(); net(torch.cat([a, b])).square().mean().backward(); opt.step()
        done += 1
reported(done=done)
"""
)


def test_an_option_that_also_sizes_a_wider_loader_is_named_with_the_value_to_pass(
    run: Callable[..., Any],
) -> None:
    def started(value: int, passed: str) -> Any:
        change = Change(knob="batch_size", value=value, spelling=Flag(("--batch-size",)), delivered=passed)
        argv = ["--batch-size", passed]
        return run(WIDE, changes=[change], argv=argv, measure=False, own={"batch_size": 20})

    ended = started(10, "10")
    assert (ended.code, ended.out) == (6, "")
    assert "Requested 10, found 50: the script uses 5 times its --batch-size" in ended.err
    assert "--batch-size 2 would be 10; a new search passes that" in ended.err
    right = started(10, "2")
    assert (right.code, right.err) == (0, "")
    assert right.reported["done"] == 9 * 64
