"""What the launcher sees of the accelerators, by stand-ins for devices."""

from __future__ import annotations

import os

from autotune.devices.common import Device, DeviceSample
from autotune.devices.find import find_devices
from autotune.launch.devices.devices_sampler import device_sampler
from autotune.model.facts import DeviceFacts


class Fake(Device):
    def __init__(self, **seen: object) -> None:
        self.seen = seen

    @property
    def facts(self) -> DeviceFacts:
        return DeviceFacts(name="x", uuid="u", memory_bytes=1)

    def sample(self) -> DeviceSample:
        return DeviceSample(**self.seen)  # pyright: ignore[reportArgumentType]


def test_a_machine_without_devices_has_nothing_to_look_at() -> None:
    assert device_sampler(lambda: [1], ()) is None
    assert find_devices() == () or os.path.exists("/dev/nvidiactl")  # noqa: PTH110 (a device file)


def test_a_process_outside_the_tree_that_computes_is_foreign() -> None:
    device = Fake(used_bytes=5, pids=(10,))
    sample = device_sampler(lambda: [10, 11], [device])
    assert sample is not None
    own = sample()
    assert own is not None
    assert (own.used_bytes, own.foreign, own.throttled) == (5, False, False)
    both = (10, 999_999_999)
    device.seen = {"used_bytes": 7, "pids": both, "busy_pids": both, "slowdowns": ("hw_thermal",)}
    other = sample()
    assert other is not None
    assert (other.used_bytes, other.foreign, other.throttled) == (7, True, True)


def test_a_process_that_only_holds_memory_is_not_foreign() -> None:
    device = Fake(used_bytes=5, pids=(10, 999_999_999), busy_pids=(10,))
    sample = device_sampler(lambda: [10], [device])
    assert sample is not None
    idle = sample()
    assert idle is not None
    assert (idle.foreign, idle.resident) == (False, False)
    del device.seen["busy_pids"]
    unreported = sample()
    assert unreported is not None
    assert (unreported.foreign, unreported.resident) == (False, True)


def test_only_devices_of_the_trial_count() -> None:
    mine, theirs = Fake(used_bytes=5, pids=()), Fake(used_bytes=9, pids=(99,), busy_pids=(99,))
    sample = device_sampler(lambda: [10], [mine, theirs])
    assert sample is not None
    assert sample() is None
    mine.seen = {"used_bytes": 6, "pids": (10,)}
    seen = sample()
    assert seen is not None
    assert (seen.used_bytes, seen.foreign) == (6, False)


def test_where_nothing_is_known_of_the_trials_device_there_is_no_look() -> None:
    """Told as free of others and empty it would stand against looks that were really had."""
    device = Fake(used_bytes=5, pids=(10,))
    sample = device_sampler(lambda: [10], [device])
    assert sample is not None
    assert sample() is not None
    device.seen = {}
    assert sample() is None


def test_pids_of_another_namespace_accuse_nobody() -> None:
    sample = device_sampler(lambda: [10], [Fake(used_bytes=5, pids=(99,), busy_pids=(99,))])
    assert sample is not None
    seen = sample()
    assert seen is not None
    assert (seen.foreign, seen.resident) == (False, False)
