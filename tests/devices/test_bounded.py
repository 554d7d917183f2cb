"""A driver that does not come back holds up nobody who asks."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

import pytest

from autotune.devices.bounded import Bounded
from autotune.devices.common import Device, DeviceSample
from autotune.devices.energy_counters import Meter, Rapl
from autotune.model.facts import DeviceFacts

if TYPE_CHECKING:
    from pathlib import Path


class Hangs(Device):
    """Answers with the number of the question, unless it is set to hang."""

    def __init__(self) -> None:
        self.requested = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def answer(self) -> int:
        self.requested += 1
        number = self.requested
        assert self.goes_on.wait(60.0)
        return number

    @property
    def facts(self) -> DeviceFacts:
        return DeviceFacts(name=f"x{self.answer()}", uuid="GPU-0", memory_bytes=1)

    def sample(self) -> DeviceSample:
        return DeviceSample(used_bytes=self.answer())

    def energy_j(self) -> float | None:
        return float(self.answer())


def until_idle(device: Bounded) -> None:
    until_s = time.monotonic() + 30.0
    while device._open is not None and not device._open.is_set():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_answers_are_those_of_the_device_in_their_order() -> None:
    device = Bounded(Hangs())
    assert (device.facts.name, device.facts.name) == ("x1", "x1")
    assert [device.sample().used_bytes, device.energy_j(), device.sample().used_bytes] == [2, 3.0, 4]


def test_what_does_not_answer_is_waited_for_once() -> None:
    one = Hangs()
    device = Bounded(one, within_s=0.2)
    one.goes_on.clear()
    begun_s = time.monotonic()
    assert device.sample() == DeviceSample()
    assert time.monotonic() - begun_s >= 0.2
    begun_s = time.monotonic()
    for _ in range(200):
        assert device.sample() == DeviceSample()
    assert (device.energy_j(), device.facts.uuid) == (None, "")
    assert time.monotonic() - begun_s < 30.0
    assert one.requested == 1
    one.goes_on.set()
    until_idle(device)
    # The late answer is of another moment.
    assert device.sample().used_bytes == 2
    assert device.facts.uuid == "GPU-0"


def test_a_meter_leaves_out_what_did_not_answer(tmp_path: Path) -> None:
    one = Hangs()
    device = Bounded(one, within_s=0.05)
    meter = Meter([device], Rapl(tmp_path))
    assert set(meter.sample().device_j) == {"GPU-0"}
    one.goes_on.clear()
    assert meter.sample().device_j == {}
    one.goes_on.set()
    until_idle(device)
    assert set(meter.sample().device_j) == {"GPU-0"}


def test_an_error_of_the_device_is_its_own() -> None:
    class Broken(Hangs):
        def energy_j(self) -> float | None:
            raise RuntimeError("as it is")

    device = Bounded(Broken())
    with pytest.raises(RuntimeError, match="as it is"):
        device.energy_j()
    assert device.sample().used_bytes == 1


@pytest.mark.parametrize("last", ["facts", "sample"])
def test_its_thread_ends_with_it(last: str) -> None:
    before = set(threading.enumerate())
    device = Bounded(Hangs())
    assert device.is_silent
    if last == "facts":
        assert device.facts.uuid == "GPU-0"
        assert not device.is_silent
    else:
        device.sample()
    (thread,) = set(threading.enumerate()) - before
    del device
    gc.collect()
    thread.join(30.0)
    assert not thread.is_alive()
