"""What the outside observer reads of a forward pass that a script compiles: it must be able to say no."""

from __future__ import annotations

from typing import Any

import pytest
from zoo_observer import Observer, _compiled_calls, _kept_format

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def formats_of(*, half: bool, afterwards: Any = lambda out: out) -> list[str]:
    torch: Any = pytest.importorskip("torch")
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = torch.compile(layers, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        out = model(torch.randn(16, 8))
    return [_kept_format(call) for call in _compiled_calls(afterwards(out).sum().grad_fn)]


def test_the_format_in_which_a_compiled_forward_pass_computes_is_read() -> None:
    assert formats_of(half=False) == ["float32"]
    assert formats_of(half=True) == ["bfloat16"]


def test_what_its_results_are_turned_to_afterwards_does_not_hide_it() -> None:
    assert formats_of(half=True, afterwards=lambda out: out.float()) == ["bfloat16"]
    assert formats_of(half=False, afterwards=lambda out: out.bfloat16()) == ["float32"]


def test_a_pass_that_nothing_compiled_says_nothing() -> None:
    torch: Any = pytest.importorskip("torch")
    assert _compiled_calls(torch.nn.Linear(8, 1)(torch.randn(4, 8)).sum().grad_fn) == []
    assert _compiled_calls(None) == []


def test_a_watched_module_can_still_be_scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    monkeypatch.setattr(torch.nn.Linear, "forward", torch.nn.Linear.forward)
    calls: list[int] = []
    Observer._around(Here(), torch.nn.Linear, "forward", after=lambda *_: calls.append(1))
    layer, x = torch.nn.Linear(4, 1), torch.ones(2, 4)
    with pytest.warns(DeprecationWarning, match="jit.script"):
        scripted = torch.jit.script(layer)
    assert torch.equal(scripted(x), layer(x))
    assert calls == [1]


class Here:
    def here(self) -> bool:
        return True
