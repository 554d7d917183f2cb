"""Counters that wrap around, may not be read, or are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeNvml

from autotune.devices.common import Device, DeviceSample
from autotune.devices.energy_counters import Meter, Rapl, spent_j
from autotune.devices.none import NoDevice
from autotune.devices.nvidia import NvidiaDevice
from autotune.model.facts import DeviceFacts

if TYPE_CHECKING:
    from pathlib import Path

RANGE_UJ = 1_000_000


def zone(root: Path, name: str, count: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{count}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder / "energy_uj"


class Counted(Device):
    """A device whose counter is set by hand."""

    def __init__(self, uuid: str, joules: float | None) -> None:
        self.uuid, self.joules = uuid, joules

    @property
    def facts(self) -> DeviceFacts:
        return DeviceFacts(name="GPU", uuid=self.uuid, memory_bytes=1)

    def sample(self) -> DeviceSample:
        return DeviceSample()

    def energy_j(self) -> float | None:
        return self.joules


def test_packages_are_added_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    one, two = zone(tmp_path, "intel-rapl:0", 100), zone(tmp_path, "intel-rapl:1", 200)
    core = zone(tmp_path, "intel-rapl:0:0", 5)
    rapl = Rapl(tmp_path)
    one.write_text("500100")
    two.write_text("250200")
    core.write_text("99999")
    assert rapl.exists
    assert rapl.joules() == pytest.approx(0.75)


def test_the_platform_that_holds_the_packages_is_not_counted_beside_them(tmp_path: Path) -> None:
    package, platform = zone(tmp_path, "intel-rapl:0", 0), zone(tmp_path, "intel-rapl:1", 0)
    package.with_name("name").write_text("package-0\n")
    platform.with_name("name").write_text("psys\n")
    rapl = Rapl(tmp_path)
    package.write_text("500000")
    platform.write_text("900000")
    assert rapl.joules() == pytest.approx(0.5)


def test_a_counter_that_wrapped_around_goes_on(tmp_path: Path) -> None:
    count = zone(tmp_path, "intel-rapl:0", 900_000)
    rapl = Rapl(tmp_path)
    count.write_text("100000")
    assert rapl.joules() == pytest.approx(0.2)
    count.write_text("50000")
    assert rapl.joules() == pytest.approx(1.15)


def test_counters_of_root_alone_are_none_and_say_so(tmp_path: Path, monkeypatch) -> None:
    zone(tmp_path, "intel-rapl:0", 5)

    def denied(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("autotune.devices.energy_counters._number", denied)
    rapl = Rapl(tmp_path)
    assert not rapl.exists
    assert rapl.joules() is None
    assert "root only" in rapl.why_not


def test_a_machine_without_counters_has_no_energy(tmp_path: Path) -> None:
    rapl = Rapl(tmp_path / "nowhere")
    assert rapl.joules() is None
    assert "no energy counters" in rapl.why_not
    meter = Meter([NoDevice()], rapl)
    assert not meter.exists
    assert meter.sample().cpu_j is None


def test_counters_that_go_away_end_in_none(tmp_path: Path) -> None:
    count = zone(tmp_path, "intel-rapl:0", 5)
    rapl = Rapl(tmp_path)
    count.unlink()
    assert rapl.joules() is None
    assert not rapl.exists


def test_a_meter_counts_from_when_it_was_made(tmp_path: Path) -> None:
    device = Counted("GPU-1", 5000.0)
    meter = Meter([device, Counted("GPU-2", None)], Rapl(tmp_path))
    device.joules = 5012.5
    assert meter.exists
    assert dict(meter.sample().device_j) == {"GPU-1": 12.5}
    device.joules = 3.0  # the driver was loaded anew
    assert dict(meter.sample().device_j) == {}


def test_nvml_reports_millijoules_of_a_whole_device_alone() -> None:
    class Nvml(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, _handle: object) -> int:  # noqa: N802
            return 12_345

    nvml = Nvml()
    assert NvidiaDevice(nvml, "handle").energy_j() == pytest.approx(12.345)
    assert NvidiaDevice(nvml, "part", "handle").energy_j() is None


def test_energy_of_a_window_lies_on_lines_between_samples() -> None:
    points = [(0, 0.0), (100, 10.0), (200, 30.0)]
    assert spent_j(points, 50, 150) == pytest.approx(15.0)
    assert spent_j(points, 50, 250) is None
    assert spent_j([], 0, 1) is None
