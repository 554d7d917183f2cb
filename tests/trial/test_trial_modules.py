"""What a training process reports of the files that it has imported."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

SCRIPT = (
    PRELUDE
    + """
import at_first
model = at_first.net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for x, in DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=4):
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
import at_late
"""
)


def test_the_baselines_facts_hold_the_users_modules(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "at_first.py").write_text("from torch import nn\ndef net(): return nn.Linear(4, 1)\n")
    (tmp_path / "at_late.py").write_text("x = 1\n")
    ran = run(SCRIPT)
    assert ran.faults == ""
    first, late = tmp_path / "at_first.py", tmp_path / "at_late.py"
    wanted = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, late)}
    assert dict(ran.facts.modules) == wanted
    changed = run(SCRIPT, changes=[Change(knob="threads", value=1, spelling=Patch())])
    assert dict(changed.facts.modules) == {}, "nobody asks a changed run"
