"""What is written, copied or converted under knobs of the number format is in the script's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

PURE, AUTOCAST, COMPILED = (
    Change(knob=knob, value=value, spelling=Patch())
    for knob, value in (("pure_bf16", True), ("precision", "bf16"), ("compile_mode", "default"))
)
TRAINED = (
    PRELUDE
    + """
import copy, io, pickle
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(1))
    def forward(self, x):
        return self.second(self.first(x).relu()) * self.scale
torch.manual_seed(0)
x = torch.randn(64, 6)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(30):
    opt.zero_grad(); F.mse_loss(net(x), x.sum(1, keepdim=True)).backward(); opt.step()
"""
)
WRITTEN = (
    TRAINED
    + """
inside = {str(p.dtype) for p in net.parameters()}
def formats(item):
    if isinstance(item, nn.Module):
        item = item.state_dict()
    if isinstance(item, dict):
        return set().union(*(formats(v) for v in item.values()))
    if isinstance(item, (list, tuple)):
        return set().union(*(formats(v) for v in item))
    return {str(item.dtype)} if hasattr(item, "dtype") and item.ndim else set()
def through(save, item, load):
    file = io.BytesIO()
    save(item, file)
    file.seek(0)
    return load(file)
def loaded(item):
    return through(torch.save, item, lambda file: torch.load(file, weights_only=False))
import cloudpickle
import numpy as np
from safetensors.torch import save_file, written
state = net.state_dict()
save_file(state, "x")
found = dict(
    whole=loaded(net),
    state=loaded({"net": state, "opt": opt.state_dict()}),
    kept=loaded({k: v.clone() for k, v in state.items()}),
    parameters=pickle.loads(pickle.dumps(list(net.parameters()))),
    cloud=pickle.loads(cloudpickle.dumps(net)),
    copied=copy.deepcopy(net),
    copied_state=copy.deepcopy(state),
    arrays=[p.detach().cpu().numpy() for p in net.parameters()],
    array_by_name=through(lambda item, file: np.save(file, item), net.first.weight.detach(), np.load),
    safe=written,
)
copied = found["copied"](x).dtype
same = torch.equal(found["whole"].first.weight, net.first.weight.float())
requires = [p.requires_grad for p in found["copied"].parameters()]
reported(inside=sorted(inside), formats={k: sorted(formats(v)) for k, v in found.items()}, copied=str(copied),
     same=same, requires=requires)
"""
)
SAFETENSORS = "written = {}\ndef save_file(tensors, name):\n    written.update(tensors)\n"


@pytest.mark.parametrize(
    "change",
    [PURE, AUTOCAST, pytest.param(COMPILED, marks=pytest.mark.slow)],
    ids=lambda change: change.knob,
)
@pytest.mark.timeout(180)
def test_files_copies_and_arrays_are_in_the_scripts_own_format(
    run: Callable[..., Any], tmp_path: Path, change: Change
) -> None:
    pytest.importorskip("cloudpickle")
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").touch()
    (tmp_path / "safetensors" / "torch.py").write_text(SAFETENSORS)
    ran = run(WRITTEN, changes=[change], measure=False, timeout_s=150)
    assert (ran.code, ran.faults, ran.err) == (0, "", "")
    reported = ran.reported
    assert reported["inside"] == ["torch.bfloat16" if change is PURE else "torch.float32"]
    own = {
        name: ["float32"] if name.startswith("array") else ["torch.float32"] for name in reported["formats"]
    }
    assert reported["formats"] == own
    assert (reported["copied"], reported["same"], reported["requires"]) == ("torch.float32", True, [True] * 4)


CONVERTED = (
    TRAINED
    + """
net.half()
net.eval()
with torch.no_grad():
    out = net(x.half())
reported(out=str(out.dtype), kinds=sorted({str(p.dtype) for p in net.parameters()}))
"""
)


@pytest.mark.parametrize("change", [PURE, AUTOCAST], ids=lambda change: change.knob)
def test_a_model_that_the_script_converts_is_called_unchanged(
    run: Callable[..., Any], change: Change
) -> None:
    ran = run(CONVERTED, changes=[change], measure=False)
    assert (ran.code, ran.faults) == (0, ""), ran.err
    assert ran.reported == {"out": "torch.float16", "kinds": ["torch.float16"]}
    assert ran.err.count("warning") == (change is PURE)


LATE = (
    TRAINED
    + """
how = sys.argv[1]
if how == "average":
    averaged = torch.optim.swa_utils.AveragedModel(net)
    for step in range(3):
        opt.zero_grad(); F.mse_loss(net(x), x.sum(1, keepdim=True)).backward(); opt.step()
        averaged.update_parameters(net)
    kinds = averaged.module
elif how == "script":
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(net.eval()), file)
    file.seek(0)
    kinds = torch.jit.load(file)
else:
    kinds = net.float()
reported(kinds=sorted({str(p.dtype) for p in kinds.parameters()}), out=str(net(x).dtype))
"""
)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("average", "averages weights"),
        ("script", "torch.jit.script is called"),
        ("convert", "converts the model"),
    ],
)
def test_halved_weights_are_withdrawn_before_what_needs_all_their_digits(
    run: Callable[..., Any], how: str, why: str
) -> None:
    ran = run(LATE, argv=[how], changes=[PURE], measure=False)
    assert (ran.code, ran.faults) == (0, ""), ran.err
    assert ran.reported == {"kinds": ["torch.float32"], "out": "torch.float32"}
    assert "pure_bf16=True withdrawn after step 3" in ran.err
    assert why in ran.err
