"""A trained module that goes elsewhere, into a file, a copy or a compiler, takes nothing of ours along."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Patch
from autotune.trial.hooks.model.compile_regions import BlockCall

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

TAKEN = (
    PRELUDE
    + """
import copy, io
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x)
class OwnState(Plain):
    def __getstate__(self):
        return self.__dict__.copy()
class OwnCopy(Plain):
    def __deepcopy__(self, memo):
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__ = copy.deepcopy(self.__dict__, memo)
        return new
models = [Plain(), OwnState(), OwnCopy()]
plain, own_state, own_copy = models
optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
for i in range(10):
    optimizer.zero_grad()
    sum(m(torch.randn(8, 4)).square().mean() for m in models).backward()
    optimizer.step()
x, failed = torch.randn(2, 4), []
def check(name, taken):
    try:
        with torch.no_grad():
            assert torch.equal(taken()(x), plain(x)), "other results"
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__} {str(error)[:150]}")
for m in models:
    m.load_state_dict(plain.state_dict())
def saved():
    file = io.BytesIO()
    torch.save(own_state, file)
    assert b"autotune" not in file.getvalue(), "ours is in the file"
    file.seek(0)
    return torch.load(file, weights_only=False)
check("state", saved)
check("copy", lambda: copy.deepcopy(own_copy))
check("script", lambda: torch.jit.script(plain))
check("trace", lambda: torch.jit.trace(plain, x))
check("symbolic", lambda: torch.fx.symbolic_trace(plain))
if "export" in sys.argv:
    check("export", lambda: torch.export.export(plain, (x,)).module())
check("still called", lambda: plain)
slots = [m.__dict__.get("_compiled_call_impl") is not None for m in models]
reported(failed=failed, slots=slots)
os._exit(0)
"""
)
BF16 = Change(knob="precision", value="bf16", spelling=Patch())


def test_a_module_is_written_copied_and_compiled_elsewhere_as_without_us(run: Callable[..., Any]) -> None:
    """Under apply with nothing to do in the model, nothing of ours is left in it."""
    ended = run(TAKEN, argv=["export"], measure=False)
    assert ended.reported == {"failed": [], "slots": [False] * 3}, ended.err


def test_a_module_that_is_changed_goes_elsewhere_without_our_call(run: Callable[..., Any]) -> None:
    script = TAKEN.replace("torch.equal(", "torch.allclose(").replace("plain(x))", "plain(x), atol=0.1)")
    ended = run(script, changes=[BF16], measure=False)
    assert ended.reported == {"failed": [], "slots": [True] * 3}, ended.err


def test_a_block_that_is_compiled_by_itself_takes_nothing_of_ours_along() -> None:
    class Block:
        """Stands for a module."""

    block = Block()
    call = block.__dict__["_compiled_call_impl"] = BlockCall(lambda: None, block)
    assert call.module() is block
    assert pickle.loads(pickle.dumps(call)) is None
    assert copy.deepcopy(call) is None
    call.release()
    assert (call.module(), vars(block)) == (None, {})
