"""NVIDIA devices by a stand-in for NVML that fails as NVML does."""

import inspect
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import FUNCTIONS, QUERIES, TOTAL, FakeNvml

from autotune.devices.find import find_devices, why_unread
from autotune.devices.none import NoDevice
from autotune.devices.nvidia import NvidiaDevices
from autotune.launch.devices.devices_sampler import device_sampler


def test_the_stand_in_has_the_functions_of_the_binding() -> None:
    for name in FUNCTIONS:
        real = list(inspect.signature(getattr(pynvml, name)).parameters)
        ours = list(inspect.signature(getattr(FakeNvml(), name)).parameters)
        assert ours == real or (ours, real) == (["handle"], ["device"]), name


def test_the_bits_and_numbers_are_those_of_the_binding() -> None:
    from autotune.devices import nvidia

    named = {
        "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
        "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
        "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    }
    assert {word: bit for bit, word in nvidia._REASONS.items()} == named
    assert pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == nvidia._UNCORRECTED
    assert pynvml.NVML_VOLATILE_ECC == nvidia._VOLATILE
    assert pynvml.NVML_DEVICE_MIG_ENABLE == nvidia._MIG_ENABLED
    assert (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND) == nvidia._NO_DATA
    assert pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND).value == pynvml.NVML_ERROR_NOT_FOUND
    assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)


def test_what_a_device_is() -> None:
    facts = [d.facts for d in NvidiaDevices(FakeNvml()).devices()]
    assert [(f.name, f.uuid, f.capability, f.driver) for f in facts] == [
        ("NVIDIA H200", "GPU-0abc", (9, 0), "580.95"),
        ("NVIDIA H200", "GPU-1abc", (9, 0), "580.95"),
    ]
    assert facts[0].memory_bytes == TOTAL
    assert [f.power_limit_w for f in facts] == [700.0, 700.001]


def test_what_a_device_does() -> None:
    sample = NvidiaDevices(FakeNvml(bits=0x4 | 0x40)).devices()[0].sample()
    assert (sample.used_bytes, sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (
        1 << 30,
        1980,
        3201,
        41,
    )
    assert sample.power_w == 123.456
    assert sample.pids == (5, 7), "who only draws is none of them"
    assert sample.busy_pids == ()
    assert sample.slowdowns == ("sw_power_cap", "hw_thermal")
    assert sample.ecc_errors == 0
    assert sample.is_throttled


def test_a_power_cap_alone_is_normal() -> None:
    assert not NvidiaDevices(FakeNvml(bits=0x4)).devices()[0].sample().is_throttled


@pytest.mark.parametrize("how", ["refuses", "mismatched", "lacks"])
def test_a_driver_or_binding_that_knows_nothing_yields_nothing_and_no_error(how) -> None:
    requested = [*QUERIES, "nvmlDeviceGetComputeRunningProcesses_v2"]
    device = NvidiaDevices(FakeNvml(**{how: requested})).devices()[0]
    assert device.sample() == NoDevice().sample()
    assert (device.facts.name, device.facts.memory_bytes, device.facts.capability) == ("", 0, (0, 0))
    assert device.facts.power_limit_w == 0.0


def test_one_query_that_is_refused_costs_no_other() -> None:
    for name in QUERIES:
        sample = NvidiaDevices(FakeNvml(refuses=[name])).devices()[0].sample()
        reported = (sample.used_bytes, sample.sm_clock_mhz, sample.temperature_c, sample.power_w)
        assert sum(value is None for value in reported) <= 1


def test_an_older_driver_is_requested_in_the_older_form() -> None:
    nvml = FakeNvml(mismatched=["nvmlDeviceGetComputeRunningProcesses"])
    assert NvidiaDevices(nvml).devices()[0].sample().pids == (9,)


def test_who_computes_is_reported_for_a_little_while_and_from_the_first_look_on(monkeypatch) -> None:
    from autotune.devices import nvidia

    now = [100.0]
    monkeypatch.setattr(nvidia, "time", SimpleNamespace(monotonic=lambda: now[0]))
    nvml = FakeNvml()
    nvml.uses(5, 90)
    device = NvidiaDevices(nvml).devices()[0]
    assert device.sample().busy_pids == (), "that was before"
    nvml.uses(5, 90)
    nvml.uses(7, 5)
    nvml.uses(9, 4_000_000)
    assert device.sample().busy_pids == (5,), "a few per cent are nothing, and more than all is no figure"
    now[0] += 1.5
    assert device.sample().busy_pids == (5,), "the driver tells of each but now and then"
    now[0] += 1.0
    assert device.sample().busy_pids == ()
    nvml.uses(5, 90)
    assert device.sample().busy_pids == (5,)
    nvml.uses(5, 0)
    assert device.sample().busy_pids == ()


def test_a_driver_that_does_not_tell_who_computes_is_not_one_that_saw_nobody() -> None:
    requested = "nvmlDeviceGetProcessUtilization"
    for how in ("refuses", "mismatched", "lacks"):
        assert NvidiaDevices(FakeNvml(**{how: [requested]})).devices()[0].sample().busy_pids is None
    (part,) = NvidiaDevices(FakeNvml(parts={1: 2}), visible="MIG-11").devices()
    assert part.sample().busy_pids is None


def test_without_a_driver_there_are_no_devices() -> None:
    assert NvidiaDevices(FakeNvml(refuses=["nvmlInit"])).devices() == ()


def test_a_driver_that_cannot_be_queried_is_reported_where_it_has_made_its_files(
    tmp_path, monkeypatch
) -> None:
    broken = NvidiaDevices(FakeNvml(refuses=["nvmlInit"]))
    monkeypatch.setattr("autotune.devices.find.NvidiaDevices", lambda: broken)
    assert why_unread(tmp_path) == ""
    (tmp_path / "nvidiactl").touch()
    assert why_unread(tmp_path) == "nvmlInit"
    assert NvidiaDevices(FakeNvml()).why_not == ""


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-0abc", "GPU-1abc"]),
        ("1", ["GPU-1abc"]),
        ("1,0", ["GPU-1abc", "GPU-0abc"]),
        (" 1 , 0 ", ["GPU-1abc", "GPU-0abc"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-0abc"]),
        ("0,9,1", ["GPU-0abc"]),
        ("0,0", []),
        ("1gpu2", ["GPU-1abc"]),
        ("GPU-1", ["GPU-1abc"]),
        ("GPU-1,GPU-0", ["GPU-1abc", "GPU-0abc"]),
        ("GPU-1,GPU-1abc", []),
        ("GPU-", []),
        ("nonsense", []),
    ],
)
def test_only_visible_devices_count(visible, uuids) -> None:
    assert [d.facts.uuid for d in NvidiaDevices(FakeNvml(), visible=visible).devices()] == uuids


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-0abc", "MIG-10ef"]),
        ("1", ["MIG-10ef"]),
        ("GPU-1", ["MIG-10ef"]),
        ("MIG-11", ["MIG-11ef"]),
        ("MIG-1", []),
        ("MIG-11,GPU-0", ["MIG-11ef", "GPU-0abc"]),
    ],
)
def test_of_a_divided_device_a_process_sees_a_part(visible, uuids) -> None:
    nvml = FakeNvml(parts={1: 2})
    assert [d.facts.uuid for d in NvidiaDevices(nvml, visible=visible).devices()] == uuids


def test_a_part_has_its_own_memory_and_the_heat_of_the_whole() -> None:
    (part,) = NvidiaDevices(FakeNvml(parts={1: 2}, bits=0x8), visible="MIG-11").devices()
    assert (part.facts.memory_bytes, part.facts.capability) == (TOTAL // 8, (9, 0))
    assert part.facts.power_limit_w == 700.001, "only a whole device has one"
    sample = part.sample()
    assert (sample.sm_clock_mhz, sample.temperature_c, sample.power_w) == (1981, 42, 123.457)
    assert sample.is_throttled


@pytest.mark.parametrize(("tree", "foreign"), [((5, 7), False), ((7,), True), ((3,), None)])
def test_a_trial_looks_at_the_devices_its_processes_are_on(tree, foreign) -> None:
    nvml = FakeNvml(bits=0x40)
    sample = device_sampler(lambda: tree, NvidiaDevices(nvml).devices())
    sample()
    nvml.uses(5, 40)
    nvml.uses(11, 40)
    seen = sample()
    assert (seen and (seen.used_bytes, seen.foreign, seen.throttled)) == (
        None if foreign is None else (1 << 30, foreign, True)
    )


def test_a_neighbour_that_only_holds_memory_takes_nothing_from_a_trial() -> None:
    nvml = FakeNvml()
    sample = device_sampler(lambda: (7,), NvidiaDevices(nvml).devices())
    nvml.uses(7, 95)
    nvml.uses(5, 2)
    for _ in range(3):
        seen = sample()
        assert (seen.foreign, seen.resident) == (False, False)
        nvml.uses(5, 2)


def test_where_nothing_shows_who_computes_a_neighbour_is_reported_and_not_blamed() -> None:
    nvml = FakeNvml(refuses=["nvmlDeviceGetProcessUtilization"])
    seen = device_sampler(lambda: (7,), NvidiaDevices(nvml).devices())()
    assert (seen.foreign, seen.resident) == (False, True)
    alone = device_sampler(lambda: (5, 7), NvidiaDevices(nvml).devices())()
    assert (alone.foreign, alone.resident) == (False, False)


def test_in_a_container_the_trial_itself_says_which_devices_it_uses() -> None:
    """The driver names processes by pids that mean nothing here."""
    nvml = FakeNvml()
    nvml.used = {0: 3, 1: 5}
    reported = []
    sample = device_sampler(lambda: (3,), NvidiaDevices(nvml).devices(), lambda: reported)
    assert sample() is None
    reported.append("GPU-0abc")
    seen = sample()
    assert (seen.used_bytes, seen.total_bytes, seen.foreign) == (3, TOTAL, False)
    assert (seen.sm_clock_mhz, seen.temperature_c, seen.power_w, seen.ecc_errors) == (1980, 41, 123.456, 0)
    reported.append("GPU-1abc")
    both = sample()
    assert (both.used_bytes, both.sm_clock_mhz, both.temperature_c, both.ecc_errors) == (5, 1980, 42, 1)
    assert both.power_w == pytest.approx(123.456 + 123.457)


def test_looking_for_devices_is_harmless_anywhere() -> None:
    assert isinstance(find_devices(), (list, tuple))
    assert find_devices({"CUDA_VISIBLE_DEVICES": ""}) in ([], ())
