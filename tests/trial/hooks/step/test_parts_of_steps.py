"""Parts of a step: the norm that a script sees, and gradients of a step that is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.knobs.common import LOADER
from autotune.model.change import Change, Keyword, Patch
from autotune.trial.hooks.step.accumulation import MicroBatches
from autotune.trial.hooks.step.backward import Backward
from autotune.trial.hooks.step.optimizer import Optimizer
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = Change(knob="batch_size", value=4, spelling=Keyword(LOADER, "batch_size"))
PARTS = Change(knob="accumulation", value=2, spelling=Patch())
CLIPS = (
    PRELUDE
    + """
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 6))
loader = DataLoader(data, batch_size=8)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
norms, limit = [], 1e9
for epoch in range(2):
    for (x,) in loader:
        opt.zero_grad()
        (net(x) - 1).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), limit)))
        limit = sorted(norms)[len(norms) // 2]
        opt.step()
reported(norms=norms, last=weights(net))
"""
)


@pytest.mark.torch
def test_a_script_that_clips_by_earlier_norms_sees_no_zero(run: Callable[..., Any]) -> None:
    own = run(CLIPS, bare=True).reported["norms"]
    tuned = run(CLIPS, changes=[SMALL, PARTS], measure=False, own={"batch_size": 8})
    assert (tuned.code, tuned.faults) == (0, ""), tuned.err
    norms = tuned.reported["norms"]
    assert len(norms) == 2 * len(own)
    assert min(norms) > 0.3 * min(own)
    assert norms[1] == pytest.approx(own[0], rel=1e-4), "the norm of the whole batch"


@pytest.fixture
def parts(tmp_path: Path) -> MicroBatches:
    return MicroBatches(RuntimeState(Faults(tmp_path / "faults.log"), "train.py"))


@pytest.mark.parametrize(("is_open", "factor"), [(True, 4.0), (False, 0.0)])
def test_a_withdrawal_in_the_middle_of_a_step_leaves_no_part_behind(
    parts: MicroBatches, is_open: bool, factor: float
) -> None:
    given: list[float] = []
    parts.on_given_up = given.append
    parts.set(4)
    parts.weigh(None)
    if not is_open:
        assert not parts.take_part()
    parts.set(1)
    assert given == [factor]
    assert (parts.pending, parts.open) == (0, False)


def test_parts_of_a_sum_keep_their_weight_when_they_are_given_up() -> None:
    scaled: list[float] = []
    for reduction in ("mean", "sum"):
        hook: Any = SimpleNamespace(
            _last=None, _losses=SimpleNamespace(reduction=reduction), _reweigh=scaled.append
        )
        Backward._given_up(hook, 4.0)
    assert scaled == [4.0]


@pytest.mark.torch
@pytest.mark.parametrize("has_scaler", [True, False])
def test_a_scaler_decides_about_gradients_that_are_not_finite(has_scaler: bool) -> None:
    """They are usual under fp16: the scaler skips the step. Without one the script's request holds."""
    torch = pytest.importorskip("torch")
    hook: Any = SimpleNamespace(
        accumulation=SimpleNamespace(factor=1, is_last_part=True),
        _state=SimpleNamespace(here=lambda: True),
        _scaler=object() if has_scaler else None,
        _unscale=lambda parameters: parameters,
    )
    clip = Optimizer._clip(hook, torch.nn.utils.clip_grad_norm_, torch)
    weight = torch.nn.Parameter(torch.ones(2))
    for given in ({"error_if_nonfinite": True}, {"norm_type": 2.0, "error_if_nonfinite": True}):
        weight.grad = torch.full((2,), float("inf"))
        if has_scaler:
            assert clip([weight], 1.0, **given).isinf()
        else:
            with pytest.raises(RuntimeError, match="non-finite"):
                clip([weight], 1.0, **given)
