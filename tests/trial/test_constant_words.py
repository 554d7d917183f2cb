"""Words and switches of the source that a trial compiles with others, and reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Constant

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

SCRIPT = (
    """DTYPE = "float32"
USE_AMP = False
"""
    + PRELUDE
    + """
on = USE_AMP or DTYPE != "float32"
x = torch.randn(64, 16)
net = nn.Linear(16, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100000):
    with torch.autocast("cpu", dtype=getattr(torch, "bfloat16"), enabled=on):
        loss = net(x).float().square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
)


@pytest.mark.parametrize(
    ("name", "was", "literal"), [("DTYPE", "float32", "bfloat16"), ("USE_AMP", False, "True")]
)
def test_a_trial_with_another_word_is_read_back(
    run: Callable[..., Any], name: str, was: Any, literal: str
) -> None:
    spelling = Constant((name,), file="train.py", line=1, was=was)
    change = Change(knob="precision", value="bf16", spelling=spelling, delivered=literal)
    ran = run(SCRIPT, changes=[change], fidelity=SHORT)
    assert ran.faults == ""
    read = ran.reading("precision")
    assert (read.found, read.status) == ("bf16", "applied")
