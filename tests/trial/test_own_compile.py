"""Scripts that compile by themselves: what is still found out about them, and what is not guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Patch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LOOP = (
    PRELUDE
    + """
import torch._dynamo.utils as seen
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, x, y=None):
        out = self.body(x)
        return out if y is None else F.mse_loss(out, y, reduction="none").sum(1) / len(y)
BACKEND = "aot_eager"
model = Net()
COMPILED
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(320, 8), torch.randn(320, 1))
for x, y in DataLoader(data, batch_size=8):
    opt.zero_grad()
    loss = LOSS
    loss.backward(); opt.step()
reported(weights=weights(model), graphs=int(seen.counters["stats"]["unique_graphs"]))
"""
)
BY_ITSELF = "model = torch.compile(model, backend=BACKEND)"


def script(compiled: str, loss: str) -> str:
    return LOOP.replace("COMPILED", compiled).replace("LOSS", loss)


@pytest.mark.parametrize("loss", ["F.mse_loss(model(x), y)", "((model(x) - y) ** 2).mean()"])
def test_the_loss_of_a_model_that_the_script_compiles_is_seen(run: Callable[..., Any], loss: str) -> None:
    ran = run(script(BY_ITSELF, loss))
    assert ran.faults == ""
    assert ran.facts.own_compile
    assert ran.facts.reduction == "mean"


def test_without_compilation_checkpoints_have_the_keys_that_the_script_gives_them(
    run: Callable[..., Any],
) -> None:
    graphs = "int(seen.counters['stats']['unique_graphs'])"
    text = (
        script(BY_ITSELF, "F.mse_loss(model(x), y)")
        + f"reported(keys=list(model.state_dict()), graphs={graphs})"
    )
    eager = run(text, changes=[Change(knob="compile_mode", value="off", spelling=Patch())], measure=False)
    assert (eager.code, eager.faults) == (0, ""), eager.err
    assert eager.reported["graphs"] == 0
    assert eager.reported["keys"] == run(text, bare=True).reported["keys"]
    assert all(key.startswith("_orig_mod.") for key in eager.reported["keys"])


LIBRARY = """
import types
inside = types.ModuleType("deepspeed.runtime.zero.muon")
source = "import torch\\n@torch.compile\\ndef scaled(x):\\n    return x * 2\\nwhole = torch.compile(scaled)"
exec(source, vars(inside))
assert float(inside.scaled.__wrapped__(torch.ones(()))) == 2
"""


def test_what_deepspeed_compiles_for_itself_is_none_of_the_scripts(run: Callable[..., Any]) -> None:
    ran = run(script(LIBRARY, "F.mse_loss(model(x), y)"))
    assert ran.code == 0, ran.err
    assert not ran.facts.own_compile
    assert ran.facts.reduction == "mean"


def test_in_place_or_outermost_it_is_seen_as_well(run: Callable[..., Any]) -> None:
    assert run(script("model.compile(backend=BACKEND)", "F.mse_loss(model(x), y)")).facts.reduction == "mean"
    of_part = "model.body = torch.compile(model.body, backend=BACKEND)"
    summed = run(script(of_part, 'F.mse_loss(model(x), y, reduction="sum")'))
    assert summed.facts.reduction == "sum"


@pytest.mark.parametrize(
    ("compiled", "loss"),
    [
        # A loss inside of what is compiled is made without our seeing it.
        (BY_ITSELF, "model(x, y).sum()"),
        ("step = torch.compile(lambda x, y: F.mse_loss(model(x), y), backend=BACKEND)", "step(x, y)"),
    ],
)
def test_a_loss_in_compiled_code_is_not_known(run: Callable[..., Any], compiled: str, loss: str) -> None:
    ran = run(script(compiled, loss))
    assert ran.faults == ""
    assert ran.facts.own_compile
    assert ran.facts.reduction == "unknown"


def test_a_probability_that_goes_into_the_loss_is_noticed(run: Callable[..., Any]) -> None:
    loss = "F.binary_cross_entropy(model(x).sigmoid(), y.gt(0).float())"
    assert run(script(BY_ITSELF, loss)).facts.bce_outside


def test_nothing_is_compiled_more_often_than_without_us(run: Callable[..., Any]) -> None:
    """Not even where the model is called without gradients before it trains, with the loss inside."""
    evaluated = """
def evaluate():
    with torch.no_grad(): model(data[:8][0], data[:8][1])
"""
    text = script(BY_ITSELF, "F.mse_loss(model(x), y)")
    text = text.replace("for x, y", f"{evaluated}evaluate()\nfor x, y")
    text = text.replace("reported(weights=", "evaluate()\nreported(weights=")
    bare, ran = run(text, bare=True), run(text)
    assert (bare.code, ran.code) == (0, 0), (bare.err, ran.err)
    assert ran.reported["graphs"] == bare.reported["graphs"] > 1
    assert ran.reported["weights"] == bare.reported["weights"]
    assert ran.facts.reduction == "mean"


def test_an_autocast_of_the_scripts_own_around_it_is_noticed(run: Callable[..., Any]) -> None:
    text = script(BY_ITSELF, "F.mse_loss(half(x).float(), y)").replace(
        "for x, y", "def half(x):\n    with torch.autocast('cpu', torch.bfloat16): return model(x)\nfor x, y"
    )
    ran = run(text)
    assert ran.facts.own_autocast, ran.err
    assert ran.facts.reduction == "mean"
