"""Counters of a device between two looks, by a stand-in for NVML that answers as the binding does."""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeNvml, NVMLError

from autotune.devices import nvidia
from autotune.devices.nvidia import NvidiaDevices

FUNCTIONS = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)


class Counting(FakeNvml):
    """A sample is the moment it was taken; the metrics say what was put in for that stretch."""

    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *, supported: int = 1, **more: Any) -> None:
        super().__init__(**more)
        self.supported, self.now, self.made = supported, 0, 0
        self.percents: dict[int, float] = {1: 80.0, 5: 25.0, 10: 60.0}
        self.returns: dict[int, int] = {}
        self.requested: list[tuple[int, int]] = []

    def nvmlGpmQueryDeviceSupport(self, device: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:  # noqa: N802
        self.made += 1
        return SimpleNamespace(at=None)

    def nvmlGpmSampleGet(self, device: int, gpmSample: Any) -> Any:  # noqa: N802, N803
        self.now += 1
        gpmSample.at = self.now
        return gpmSample

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(8)])

    def nvmlGpmMetricsGet(self, metricsGet: SimpleNamespace) -> SimpleNamespace:  # noqa: N802, N803
        self.requested.append((metricsGet.sample1.at, metricsGet.sample2.at))
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            metric.value = self.percents[metric.metricId]
            metric.nvmlReturn = self.returns.get(metric.metricId, 0)
        return metricsGet


def test_the_stand_in_asks_as_the_binding_does() -> None:
    for name in FUNCTIONS:
        real = list(inspect.signature(getattr(pynvml, name)).parameters)
        assert list(inspect.signature(getattr(Counting(), name)).parameters) == real, name
    wanted = (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL)
    assert tuple(nvidia._GPM.values()) == (*wanted, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)
    requested = pynvml.c_nvmlGpmMetricsGet_t()
    assert isinstance(requested, ctypes.Structure)
    requested.metrics[0].metricId, requested.numMetrics = 1, 3
    assert {"value", "nvmlReturn"} <= {name for name, _ in type(requested.metrics[0])._fields_}
    assert {"version", "sample1", "sample2"} <= {name for name, *_ in type(requested)._fields_}


def test_the_second_look_reports_the_time_since_the_first() -> None:
    nvml = Counting()
    device = NvidiaDevices(nvml).devices()[0]
    assert device.sample().busy_frac is None
    for _ in range(3):
        seen = device.sample()
        assert (seen.busy_frac, seen.tensor_frac, seen.dram_frac) == (0.8, 0.25, 0.6)
    assert nvml.requested == [(1, 2), (2, 3), (3, 4)]
    assert nvml.made == 2, "the driver's samples are used again"


def test_a_counter_that_does_not_answer_is_not_known() -> None:
    nvml = Counting()
    nvml.returns, nvml.percents[10] = {5: 3}, 1e9
    device = NvidiaDevices(nvml).devices()[0]
    device.sample()
    seen = device.sample()
    assert (seen.busy_frac, seen.tensor_frac, seen.dram_frac) == (0.8, None, None)


@pytest.mark.parametrize("name", [*FUNCTIONS, "c_nvmlGpmMetricsGet_t"])
def test_a_driver_or_binding_without_counters_has_none_and_no_error(name: str) -> None:
    class Lacking(Counting):
        def __getattribute__(self, requested: str) -> Any:
            if requested == name:
                raise AttributeError(requested)
            return super().__getattribute__(requested)

    class Refusing(Counting):
        pass

    def refuse(*_: object) -> None:
        raise NVMLError(name)

    setattr(Refusing, name, staticmethod(refuse))
    for nvml in (Lacking(), Refusing()):
        device = NvidiaDevices(nvml).devices()[0]
        for _ in range(3):
            seen = device.sample()
            assert (seen.busy_frac, seen.tensor_frac, seen.dram_frac) == (None, None, None)
            assert seen.sm_clock_mhz == 1980
        assert nvml.made <= 2


def test_a_device_that_has_no_counters_and_a_part_of_one_are_not_proposed_again() -> None:
    old = Counting(supported=0)
    device = NvidiaDevices(old).devices()[0]
    assert [device.sample().busy_frac for _ in range(3)] == [None] * 3
    (part,) = NvidiaDevices(Counting(parts={1: 2}), visible="MIG-11").devices()
    assert [part.sample().busy_frac for _ in range(3)] == [None] * 3
    assert old.now == old.made == 0
