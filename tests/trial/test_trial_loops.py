"""Loops that are more than a step per batch: what the facts say of them, and what accumulation does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.inspection.script import script_facts
from autotune.knobs.batch.accumulation import Accumulation
from autotune.model.change import Change, Keyword, Patch
from autotune.model.facts import Facts, HostFacts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


ENGINE = """
from torch.nn import functional as F
import helpers
def fit(model, optimizer, loader, steps):
    done = 0
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            helpers.clip_gradient(optimizer, 0.1)
            optimizer.step()
            done += 1
            if done >= steps:
                return
"""
HELPERS = """
def clip_gradient(optimizer, limit):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.data.clamp_(-limit, limit)
"""
ELSEWHERE = (
    PRELUDE
    + """
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import engine
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
engine.fit(model, optimizer, DataLoader(data, batch_size=32), steps=20)
"""
)


def test_a_loop_in_another_file_is_read_and_accumulation_refused(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "helpers.py").write_text(HELPERS)
    ran = run(ELSEWHERE)
    assert ran.faults == ""
    assert set(ran.facts.loop_hazards) >= {"step_counted_loop", "own_gradient"}
    script = script_facts(str(tmp_path / "train.py"))
    assert "step_counted_loop" not in script.hazards
    host = HostFacts(cpus=2, physical_cores=2, memory_bytes=1 << 33)
    assert "counts steps" in str(Accumulation().refuse(Facts(host=host, script=script, run=ran.facts)))


AVERAGED = (
    PRELUDE
    + """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
torch.manual_seed(0)
x = torch.randn(64, 8)
model = nn.Linear(8, 1)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x), batch_size=16)
for epoch in range(4):
    for i, (part,) in enumerate(loader):
        optimizer.zero_grad()
        F.mse_loss(model(part), part[:, :1]).backward()
        optimizer.step()
        if not (i % 2 and "apart" in sys.argv): averaged.update_parameters(model)
reported(average=weights(averaged.module), count=int(averaged.n_averaged))
"""
)


def test_a_moving_average_moves_once_a_step_and_not_once_a_part_of_one(run: Callable[..., Any]) -> None:
    batch = Change(knob="batch_size", value=4, spelling=Keyword("torch.utils.data.DataLoader", "batch_size"))
    full = run(AVERAGED)
    assert not full.facts.averages_apart
    assert full.facts.loop_hazards == ()
    parts = run(AVERAGED, changes=[batch, patch("accumulation", 4)], measure=False)
    assert parts.err == ""
    assert parts.reported["count"] == full.reported["count"] == 16
    assert parts.reported["average"] == pytest.approx(full.reported["average"], rel=1e-5)
    assert run(AVERAGED, argv=["apart"]).facts.averages_apart


PHASES = (
    PRELUDE
    + """
first, second = nn.Linear(8, 8), nn.Linear(8, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
x, seen = torch.randn(16, 8), []
first.register_forward_hook(lambda m, i, o: seen.append("first " + str(o.dtype)))
second.register_forward_hook(lambda m, i, o: seen.append("second " + str(o.dtype)))
for i in range(30):
    optimizers[0].zero_grad()
    first(x).square().mean().backward()
    optimizers[0].step()
for i in range(30):
    optimizers[1].zero_grad()
    second(first(x).detach()).square().mean().backward()
    optimizers[1].step()
reported(last=seen[-2:])
"""
)


def test_under_apply_a_model_that_trains_later_is_changed_too(run: Callable[..., Any]) -> None:
    ran = run(PHASES, changes=[patch("precision", "bf16")], measure=False)
    assert (ran.code, ran.reported["last"]) == (0, ["first torch.bfloat16", "second torch.bfloat16"]), ran.err


LATER = (
    PRELUDE
    + """
import time
kind = sys.argv[1]
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 64)
    def forward(self, x):
        if kind == "refusing":
            with torch.autocast("cpu", enabled=False):
                return self.inner(x)
        out = self.inner(x)
        seen.append(str(out.dtype))
        return out
first, second, seen = nn.Linear(8, 8), Head(), []
if kind == "one":
    one = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    optimizers = [one, one]
else:
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
x = torch.randn(16, 8)
for i in range(12):
    optimizers[0].zero_grad()
    first(x).square().mean().backward()
    optimizers[0].step()
for i in range(10**9 if kind == "refusing" else 20):
    optimizers[1].zero_grad()
    second(first(x).detach()).square().mean().backward()
    optimizers[1].step()
    time.sleep(0.002)
reported(last=seen[-1])
"""
)


@pytest.mark.parametrize("kind", ["several", "one"])
def test_a_model_that_trains_later_is_changed_whoever_holds_its_weights(
    run: Callable[..., Any], kind: str
) -> None:
    ran = run(LATER, argv=[kind], changes=[patch("precision", "bf16")])
    assert ran.faults == ""
    assert (ran.done.why, ran.reported["last"]) == ("script_end", "torch.bfloat16"), ran.broke
    assert ran.facts.values["precision"] == "bf16"
    applied = run(LATER, argv=[kind], changes=[patch("precision", "bf16")], measure=False)
    assert (applied.code, applied.reported["last"]) == (0, "torch.bfloat16"), applied.err


def test_a_trial_whose_later_model_cannot_be_changed_is_not_ranked(run: Callable[..., Any]) -> None:
    """The window is of what trains in it, whatever the phase before was changed to."""
    ran = run(LATER, argv=["refusing"], changes=[patch("precision", "bf16")], fidelity=SHORT)
    assert ran.faults == ""
    assert (ran.broke.kind, ran.broke.knob) == ("config_rejected", "precision")
    assert ran.broke.message == "Requested bf16, found fp32."


CLIPPED = (
    PRELUDE
    + """
torch.manual_seed(0)
model = nn.Linear(8, 1)
before = torch.optim.SGD([model.weight] if "shared" in sys.argv else [nn.Parameter(torch.zeros(1))], lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
after = torch.optim.SGD(model.parameters() if "both" in sys.argv else [nn.Parameter(torch.zeros(1))], lr=0.1)
x = torch.randn(64, 8)
for i in range(40):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x[:, :1])
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if "leaving" in sys.argv and i % 3 == 2: continue
    optimizer.step()
reported(loss=loss.item(), norm=float(norm))
"""
)


def test_gradients_are_scaled_back_by_the_optimizer_that_owns_them_before_they_are_clipped(
    run: Callable[..., Any],
) -> None:
    fp16 = [patch("precision", "fp16")]
    bare = run(CLIPPED, bare=True).reported
    reported = run(CLIPPED, argv=["shared"], changes=fp16, measure=False).reported
    assert reported["loss"] == pytest.approx(bare["loss"], abs=0.01)
    assert reported["norm"] == pytest.approx(bare["norm"], abs=0.05)
    # A step that the script leaves out takes its gradients along.
    bare = run(CLIPPED, argv=["leaving"], bare=True).reported
    reported = run(CLIPPED, argv=["leaving"], changes=fp16, measure=False).reported
    assert reported["norm"] == pytest.approx(bare["norm"], abs=0.05)
    # Two could own them, and which of them steps is not known when they are clipped for the first time.
    lost = run(CLIPPED, argv=["both"], changes=fp16, measure=False)
    assert (lost.code, lost.out) == (6, "")
    assert "gradients of several optimizers" in lost.err


CLOSURE = (
    PRELUDE
    + """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
x = torch.randn(16, 8)
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for i in range(4):
    optimizer.step(closure)
"""
)


def test_fp16_is_refused_where_a_closure_leaves_no_place_to_scale_gradients(run: Callable[..., Any]) -> None:
    refused = run(CLOSURE, changes=[patch("precision", "fp16")])
    assert (refused.broke.kind, refused.broke.knob) == ("config_rejected", "precision")
    assert "steps with a closure" in refused.broke.message


HOOKED = (
    PRELUDE
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
root, inner, x = [], [], torch.randn(64, 8)
for i in range(12):
    optimizer.zero_grad()
    F.mse_loss(model(x), x[:, :1]).backward()
    optimizer.step()
    if i == 6:
        model.register_forward_hook(lambda *a: root.append(1))
        model[0].register_forward_hook(lambda *a: inner.append(1))
reported(root=len(root), inner=len(inner))
"""
)


@pytest.mark.slow
def test_hooks_of_the_script_run_in_code_that_it_never_requested_to_have_compiled(
    run: Callable[..., Any],
) -> None:
    ran = run(HOOKED, changes=[patch("compile_mode", "default")], measure=False)
    assert (ran.code, ran.reported) == (0, {"root": 5, "inner": 5}), ran.err
