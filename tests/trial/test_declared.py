"""Knobs that a user declares, in real processes: no class of ours knows them there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Env, Flag, Keyword

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

TRAIN = (
    PRELUDE
    + """
from autotune import sdk
torch.manual_seed(3)
model = nn.Linear(8, 1)
data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
train = DataLoader(data, batch_size=4)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
print(json.dumps({"amsgrad": opt.defaults["amsgrad"], "depth": sdk.value("depth", 1), "argv": sys.argv[1:],
                  "algo": os.environ.get("NCCL_ALGO", "")}), flush=True)
for epoch in range(500):
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
"""
)
AMSGRAD = Change(knob="mine", value=True, spelling=Keyword("torch.optim.AdamW", "amsgrad"))
DEPTH = Change(knob="depth", value=3, spelling=Keyword("autotune.sdk.value", "depth"))
ALGO = Change(knob="algo", value="Tree", spelling=Env("NCCL_ALGO"), delivered="Tree")
FUSE = Change(knob="fuse", value=1, spelling=Flag(("--fuse",)), delivered="")


def test_a_knob_without_a_class_counts_when_it_was_delivered(run: Callable[..., Any]) -> None:
    ran = run(
        TRAIN,
        changes=(AMSGRAD, DEPTH, ALGO, FUSE),
        fidelity=SHORT,
        argv=("--fuse",),
        env={"NCCL_ALGO": "Tree"},
    )
    assert ran.closed is not None, ran.err
    for knob in ("mine", "depth", "algo", "fuse"):
        reading = ran.reading(knob)
        assert (reading.status, reading.reason) == ("applied", "Delivered; its effect is not read."), reading
    reported = json.loads(ran.out.splitlines()[0])
    assert reported == {"amsgrad": True, "depth": 3, "argv": ["--fuse"], "algo": "Tree"}


def test_a_keyword_of_a_callable_that_is_never_called_is_not_ranked(run: Callable[..., Any]) -> None:
    never = Change(knob="mine", value=True, spelling=Keyword("torch.optim.RAdam", "foreach"))
    ran = run(TRAIN, changes=(never,), fidelity=SHORT)
    assert ran.reading("mine").status == "not_reached"


def test_apply_carries_out_a_declared_keyword_and_ends_where_it_is_not_reached(
    run: Callable[..., Any],
) -> None:
    short = TRAIN.replace("range(500)", "range(1)")
    assert '"amsgrad": true' in run(short, changes=(AMSGRAD,), measure=False).out
    never = Change(knob="mine", value=True, spelling=Keyword("torch.optim.RAdam", "foreach"))
    ended = run(short, changes=(never,), measure=False)
    assert ended.code == 6
    assert "mine=True was not applied" in ended.err
