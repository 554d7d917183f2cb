"""Some steps are marked for Nsight Systems on a CUDA device, and none without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.answer.bottleneck import PREFIX
from autotune.trial.probe import nsight_capture as capture
from autotune.trial.probe.nsight_capture import Capture

if TYPE_CHECKING:
    from collections.abc import Callable

    from trial_kit import Ran

LOOP = """
model = nn.Linear(64, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(4000, 64), torch.zeros(4000).long()), batch_size=8)
for _ in range(100):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


class Device:
    """Notes its calls."""

    def __init__(self, *, on_cuda: bool = True) -> None:
        self.on_cuda = on_cuda
        self.message: list[str] = []
        profiler = SimpleNamespace(start=self.noting("start"), stop=self.noting("stop"))
        nvtx = SimpleNamespace(range_push=self.message.append, range_pop=self.noting("pop"))
        self.torch = SimpleNamespace(cuda=SimpleNamespace(profiler=profiler, nvtx=nvtx))
        self.faults: list[str] = []
        faults = SimpleNamespace(note=lambda hook, _: self.faults.append(hook))
        self.state: Any = SimpleNamespace(faults=faults)

    def noting(self, word: str) -> Any:
        return lambda: self.message.append(word)

    def synchronise(self) -> None:
        self.message.append("wait")

    def capture(self) -> Capture:
        memory: Any = self
        return Capture(self.state, self.torch, memory)


def test_a_few_steps_lie_between_start_and_stop_each_a_range() -> None:
    device = Device()
    made = device.capture()
    steps = 1
    while not made.step():
        steps += 1
    assert steps == capture.STEPS + 1
    assert device.message[:3] == ["wait", "start", "step 1"]
    assert device.message[-3:] == ["pop", "wait", "stop"]
    assert device.message.count("pop") == capture.STEPS
    assert made.step(), "it stays over"
    assert device.message.count("stop") == 1


def test_slow_steps_are_fewer(monkeypatch: Any) -> None:
    monkeypatch.setattr(capture, "SECONDS", 0.0)
    device = Device()
    made = device.capture()
    assert [made.step(), made.step()] == [False, True]
    assert device.message == ["wait", "start", "step 1", "pop", "wait", "stop"]


def test_without_a_device_there_is_nothing_to_mark() -> None:
    device = Device(on_cuda=False)
    made = device.capture()
    assert made.step()
    assert device.message == []
    assert made.figures == {}


def test_what_goes_wrong_is_noted_and_ends_it() -> None:
    device = Device()
    del device.torch.cuda.profiler.start
    made = device.capture()
    assert made.step()
    assert device.faults == ["capture"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_that_is_recorded_is_measured_like_any_other_and_looks_for_nothing(
    run: Callable[..., Ran],
) -> None:
    ran = run(PRELUDE + LOOP, fidelity=replace(SHORT, probe="nsys_whole"))
    assert ran.closed is not None, ran.err
    assert ran.closed.ended in ("tight", "limit", "script_end")
    assert not any(name.startswith(PREFIX) for name in ran.closed.counters)
