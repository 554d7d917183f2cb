"""NVIDIA devices by a stand-in for NVML that fails as NVML does."""

# ruff: noqa: N802 (the names are those of NVML)

from types import SimpleNamespace

import pytest

from autotune.devices.find import find_device, find_devices
from autotune.devices.none import NoDevice
from autotune.devices.nvidia import NvidiaDevices
from autotune.launch.devices_sampler import device_sampler


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two devices; names in `refuses` raise as an unsupported query does."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *, refuses=(), bits=0, count=2):
        self.refuses, self.bits, self.count = set(refuses), bits, count

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self.refuses:

            def refuse(*_):
                raise NVMLError(name)

            return refuse
        return super().__getattribute__(name)

    def nvmlInit(self):
        return None

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, n):
        return n

    def nvmlDeviceGetName(self, h):
        return b"NVIDIA H200" if h else "NVIDIA H200"

    def nvmlDeviceGetUUID(self, h):
        return f"GPU-{h}abc"

    def nvmlDeviceGetMemoryInfo(self, h):
        return SimpleNamespace(total=150754820096, used=1 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, h):
        return (9, 0)

    def nvmlSystemGetDriverVersion(self):
        return "580.95"

    def nvmlDeviceGetClockInfo(self, h, kind):
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, h, kind):
        return 41

    def nvmlDeviceGetPowerUsage(self, h):
        return 123456

    def nvmlDeviceGetCurrentClocksEventReasons(self, h):
        return self.bits

    def nvmlDeviceGetComputeRunningProcesses(self, h):
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=5)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, h):
        return [SimpleNamespace(pid=7)]


EVERYTHING = [
    name
    for name in vars(FakeNvml)
    if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
]


def test_what_a_device_is() -> None:
    facts = [d.facts for d in NvidiaDevices(FakeNvml()).devices()]
    assert [(f.name, f.uuid, f.capability, f.driver) for f in facts] == [
        ("NVIDIA H200", "GPU-0abc", (9, 0), "580.95"),
        ("NVIDIA H200", "GPU-1abc", (9, 0), "580.95"),
    ]
    assert facts[0].memory_bytes == 150754820096


def test_what_a_device_does() -> None:
    sample = NvidiaDevices(FakeNvml(bits=0x4 | 0x40)).devices()[0].sample()
    assert (sample.used_bytes, sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (
        1 << 30,
        1980,
        3201,
        41,
    )
    assert sample.power_w == 123.456
    assert sample.pids == (5, 7)
    assert sample.slowdowns == ("sw_power_cap", "hw_thermal")
    assert sample.is_throttled


def test_a_power_cap_alone_is_normal() -> None:
    assert not NvidiaDevices(FakeNvml(bits=0x4)).devices()[0].sample().is_throttled


def test_a_driver_that_refuses_everything_yields_nothing_and_no_error() -> None:
    device = NvidiaDevices(FakeNvml(refuses=EVERYTHING)).devices()[0]
    assert device.sample() == NoDevice().sample()
    assert (device.facts.name, device.facts.memory_bytes, device.facts.capability) == ("", 0, (0, 0))


def test_without_a_driver_there_are_no_devices() -> None:
    assert NvidiaDevices(FakeNvml(refuses=["nvmlInit"])).devices() == ()


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-0abc", "GPU-1abc"]),
        ("1", ["GPU-1abc"]),
        ("1,0", ["GPU-1abc", "GPU-0abc"]),
        ("", []),
        ("-1", []),
        ("0,9,1", ["GPU-0abc"]),
        ("GPU-1", ["GPU-1abc"]),
        ("GPU-", []),
        ("nonsense", []),
    ],
)
def test_only_visible_devices_count(visible, uuids) -> None:
    assert [d.facts.uuid for d in NvidiaDevices(FakeNvml(), visible=visible).devices()] == uuids


@pytest.mark.parametrize(("tree", "foreign"), [((5, 7), False), ((7,), True), ((3,), None)])
def test_a_trial_looks_at_the_devices_its_processes_are_on(tree, foreign) -> None:
    sample = device_sampler(lambda: tree, NvidiaDevices(FakeNvml(bits=0x40)).devices())
    seen = sample()
    assert (seen and (seen.used_bytes, seen.foreign, seen.throttled)) == (
        None if foreign is None else (1 << 30, foreign, True)
    )


def test_looking_for_devices_is_harmless_anywhere() -> None:
    assert isinstance(find_devices(), (list, tuple))
    assert isinstance(find_device("GPU-no-such"), NoDevice)
