"""Scripts that do not look like the textbook, in real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Keyword, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

GAN = (
    PRELUDE
    + """
torch.manual_seed(1)
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(4, 8)
    def forward(self, z): return self.l(z)
class D(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(8, 1)
    def forward(self, x): return torch.sigmoid(self.l(x))
g, d = G(), D()
data = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=8)
og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
bce = nn.BCELoss()
for epoch in range(3):
    for (x,) in data:
        od.zero_grad()
        bce(d(x), torch.ones(8, 1)).backward()
        fake = g(torch.randn(8, 4))
        bce(d(fake.detach()), torch.zeros(8, 1)).backward()
        od.step()
        og.zero_grad()
        bce(d(fake), torch.ones(8, 1)).backward()
        og.step()
reported(weights=weights(g) + weights(d))
"""
)


def test_a_gan_counts_one_step_per_period_of_its_first_optimizer(run: Callable[..., Any]) -> None:
    ran = run(GAN)
    assert ran.faults == ""
    assert ran.done.steps == 15
    assert [r.samples for r in ran.rows] == [8] * 15
    facts = ran.facts
    assert facts.optimizer.count == 2
    assert facts.model.roots == 2
    assert facts.bce_outside
    assert facts.backward_per_step == 3
    assert not facts.own_accumulation
    refused = run(
        GAN.replace("range(3)", "range(10**9)"),
        changes=[Change(knob="accumulation", value=2, spelling=Patch())],
        fidelity=SHORT,
    )
    assert refused.broke.kind == "config_rejected"
    assert "optimizers" in refused.broke.message


ODD = (
    PRELUDE
    + """
kind = sys.argv[1]
torch.manual_seed(1)
x, y = torch.randn(32, 4), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
if kind == "lbfgs":
    opt = torch.optim.LBFGS(model.parameters(), max_iter=5)
    def closure():
        opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); return loss
    for i in range(7): opt.step(closure)
elif kind == "manual":
    for i in range(9):
        model.zero_grad(); F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters(): p -= 0.01 * p.grad
elif kind == "autocast":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(8):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward(); opt.step()
elif kind == "scaler":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for i in range(8):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        if i == 4: loss = loss * float("inf")
        scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
elif kind == "nan":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(1000):
        opt.zero_grad(); loss = F.mse_loss(model(x), y)
        if i > 5: loss = loss * float("nan")
        loss.backward(); opt.step()
elif kind == "crash":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(5):
        opt.zero_grad(); F.mse_loss(model(x), y).backward(); opt.step()
    raise ValueError("the disk is made of cheese")
elif kind == "own":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(24):
        (F.mse_loss(model(x[:8]), y[:8], reduction="sum") / 8 / 4).backward()
        if i % 4 == 3: opt.step(); opt.zero_grad()
elif kind == "early":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.zero_grad(); F.mse_loss(model(x), y).backward(); opt.step()
    sys.exit(3)
elif kind == "bare":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        try:
            opt.zero_grad(); F.mse_loss(model(x), y).backward(); opt.step()
        except:
            pass
reported(weights=weights(model))
"""
)


@pytest.mark.parametrize("kind", ["lbfgs", "manual", "autocast", "scaler", "own"])
def test_other_kinds_of_loop_are_counted_and_left_bit_equal(run: Callable[..., Any], kind: str) -> None:
    ran = run(ODD, argv=[kind])
    assert ran.faults == ""
    assert ran.done.why == "script_end", ran.err
    facts = ran.facts
    if kind == "lbfgs":
        assert ran.done.steps == 7
        assert facts.optimizer.closure
        assert ran.reported == run(ODD, argv=[kind], bare=True).reported
    if kind == "manual":
        assert ran.done.steps == 9
        assert facts.optimizer is None
        assert facts.zero_grad_seen
        assert ran.reported == run(ODD, argv=[kind], bare=True).reported
    if kind == "autocast":
        assert facts.own_autocast
        assert facts.values["precision"] == "bf16"
        assert ran.done.steps == 8
    if kind == "scaler":
        assert facts.own_scaler
        assert ran.done.steps == 8
    if kind == "own":
        assert ran.done.steps == 6
        assert facts.own_accumulation
        assert facts.values["accumulation"] == 4
        assert facts.reduction == "unknown"


def test_ends_of_all_kinds_are_reported(run: Callable[..., Any]) -> None:
    nan = run(ODD, argv=["nan"])
    assert nan.broke.kind == "diverged"
    assert nan.done is None
    assert nan.broke.steps <= 9
    crash = run(ODD, argv=["crash"])
    assert crash.broke.kind == "crash_exit"
    assert crash.broke.error == "ValueError"
    assert crash.code == 1
    assert "cheese" in crash.broke.message
    assert "train.py" in crash.broke.tail
    assert "cheese" in crash.err
    assert crash.broke.steps == 5
    assert "autotune" not in crash.err
    early = run(ODD, argv=["early"])
    assert early.done.code == 3
    assert early.done.why == "script_exit"
    assert early.code == 3
    assert early.closed is None
    bare = run(ODD, argv=["bare"], fidelity=SHORT)
    assert bare.done.why == "measured"
    assert bare.code == 0


THREADS = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import json, random, sys
random_first = random.random()
import torch, numpy
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self): self.model = nn.Linear(4, 1)
    def __len__(self): return 32
    def __getitem__(self, i):
        loss = self.model(torch.ones(1, 4)).sum()
        loss.backward()
        torch.optim.SGD(self.model.parameters(), lr=0.1).step()
        return [torch.randn(3), torch.randn(4)]

if __name__ == "__main__":
    torch.manual_seed(5)
    model = nn.Linear(4, 1)
    first = [float(p.sum()) for p in model.parameters()]
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for a, b in DataLoader(Data(), batch_size=4, num_workers=2, shuffle=True):
            opt.zero_grad(); model(b).square().mean().backward(); opt.step()
    print(json.dumps(dict(threads=torch.get_num_threads(), first=first, main=sys.modules["__main__"].__file__,
                          random=random_first, numpy=float(numpy.random.rand()), argv=sys.argv[1:])))
"""


def test_workers_do_not_count_threads_stay_the_scripts_and_seeds_shift_together(
    run: Callable[..., Any],
) -> None:
    env = {"OMP_NUM_THREADS": "2"}
    ran = run(THREADS, env=env)
    other = run(THREADS, env=env, seed=1)
    bare = run(THREADS, env=env, bare=True)
    assert ran.faults == ""
    assert ran.done.steps == 16
    assert [r.samples for r in ran.rows] == [4] * 16
    assert ran.reported["threads"] == bare.reported["threads"] == 1
    assert ran.reported["first"] == bare.reported["first"]
    assert other.reported["first"] != ran.reported["first"]
    assert other.reported["numpy"] != ran.reported["numpy"]
    assert other.reported["random"] != ran.reported["random"]
    assert ran.facts.values["num_workers"] == 2


SDK = """
import sys
from autotune import sdk
depth = sdk.value("depth", 2)
for i in range(10):
    sdk.step(samples=depth, loss=1.0 / (i + 1))
print("torch" in sys.modules, depth)
"""


def test_the_sdk_is_the_boundary_and_torch_is_never_imported(run: Callable[..., Any]) -> None:
    change = Change(knob="depth", value=5, spelling=Keyword("autotune.sdk.value", "depth"))
    ran = run(SDK, changes=[change], cold=True)
    assert ran.faults == ""
    assert ran.out == "False 5\n"
    assert [r.samples for r in ran.rows] == [5] * 10
    assert run(SDK, bare=True, cold=True).out == "False 2\n"


FACTORY = (
    PRELUDE
    + """
def make(n):
    return DataLoader(TensorDataset(torch.randn(n, 4)), batch_size=4)
train = make(32)
test = make(16)
class Twice(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x): return self.l(x).square().mean()
model = Twice()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
first, seen = set(), set()
for epoch in range(2):
    for (x,) in train:
        opt.zero_grad(); model(x).backward(); opt.step(); first.add(len(x))
    model.eval()
    seen |= {len(x) for (x,) in test}
import copy, io
torch.save(model, io.BytesIO()); copy.deepcopy(model)
reported(first=sorted(first), seen=sorted(seen), keys=list(model.state_dict()),
     slot="_compiled_call_impl" in copy.copy(model).__dict__)
"""
)


def test_a_loader_factory_is_distinguished_by_its_caller(run: Callable[..., Any]) -> None:
    base = run(FACTORY)
    site = base.facts.loader.site
    assert base.faults == ""
    assert "<" in site
    change = Change(
        knob="batch_size", value=8, spelling=Keyword("torch.utils.data.DataLoader", "batch_size"), site=site
    )
    ran = run(FACTORY, changes=[change], sites=[site])
    assert ran.reported["first"] == [8]
    assert ran.reported["seen"] == [4]
    assert ran.reported["keys"] == ["l.weight", "l.bias"]
