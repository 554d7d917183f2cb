"""A device is one trial's at a time, and none that does not compute is given to anybody."""

from __future__ import annotations

import pytest
from faultbed import devices

from autotune.launch.devices import device_care

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SHARED, QUARANTINE = devices.sample()


@pytest.mark.parametrize("case", devices.sample(), ids=lambda case: case["key"])
def test_a_device_is_shared_by_turns_and_a_broken_one_is_left_alone(injected, is_clean, case) -> None:
    is_clean(injected(devices, case))


def test_without_locks_trials_meet_on_a_device(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_care.fcntl, "flock", lambda *_: None)
    assert injected(devices, SHARED).duplicated


def test_with_one_try_a_device_is_given_up_too_soon(injected, monkeypatch: pytest.MonkeyPatch) -> None:
    release = device_care.DeviceCare.release

    def once(care, *what) -> None:
        monkeypatch.setattr(device_care, "CANARIES", 1)
        release(care, *what)
        monkeypatch.setattr(device_care, "CANARIES", 2)

    monkeypatch.setattr(device_care.DeviceCare, "release", once)
    assert injected(devices, QUARANTINE).survived < QUARANTINE["damages"]
