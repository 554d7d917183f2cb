"""NVIDIA devices by NVML. The only module that imports pynvml, when it is first needed.

Harmless without a driver: there are no devices then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from autotune.core.facts import DeviceFacts
from autotune.devices.common import Device, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

_REASONS: Final = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h."""


class NvidiaDevice(Device):
    """One device behind an NVML handle."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Wrap a handle of an initialised `nvml` module."""
        self._nvml = nvml
        self._handle = handle
        self._facts: DeviceFacts | None = None

    @property
    def facts(self) -> DeviceFacts:
        """Name, UUID, memory and compute capability, read once."""
        if self._facts is None:
            self._facts = self._read_facts()
        return self._facts

    def _read_facts(self) -> DeviceFacts:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        major, minor = self._ask(nvml.nvmlDeviceGetCudaComputeCapability) or (0, 0)
        return DeviceFacts(
            name=_text(self._ask(nvml.nvmlDeviceGetName)),
            uuid=_text(self._ask(nvml.nvmlDeviceGetUUID)),
            memory_bytes=0 if memory is None else int(memory.total),
            capability=(int(major), int(minor)),
            driver=_text(_quiet(nvml, nvml.nvmlSystemGetDriverVersion)),
        )

    def sample(self) -> DeviceSample:
        """Memory, clocks, heat, power, slow-downs and processes, now."""
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return DeviceSample(
            used_bytes=None if memory is None else int(memory.used),
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            slowdowns=self._slowdowns(),
            pids=self._pids(),
        )

    def _slowdowns(self) -> tuple[str, ...]:
        ask = getattr(self._nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        ask = ask or getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        bits = self._ask(ask) if ask is not None else None
        return tuple(word for bit, word in _REASONS.items() if bits is not None and int(bits) & bit)

    def _pids(self) -> tuple[int, ...]:
        nvml = self._nvml
        asked = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
        found = {int(process.pid) for ask in asked for process in self._ask(ask) or ()}
        return tuple(sorted(found))

    def _ask(self, question: Callable[..., T], *arguments: object) -> T | None:
        return _quiet(self._nvml, question, self._handle, *arguments)


class NvidiaDevices:
    """The NVIDIA devices of this machine that a process started now would see.

    Args:
        nvml: The module pynvml or one like it; None imports it, and finds nothing where that
            fails or no driver runs.
        visible: ``CUDA_VISIBLE_DEVICES``; None: all.
    """

    def __init__(self, nvml: Any | None = None, *, visible: str | None = None) -> None:
        """Connect to the driver, if there is one."""
        self._nvml = _initialised(nvml)
        self._visible = visible

    def devices(self) -> Sequence[Device]:
        """In NVML's order, which is that of the bus."""
        nvml = self._nvml
        if nvml is None:
            return ()
        count = _quiet(nvml, nvml.nvmlDeviceGetCount) or 0
        handles = [_quiet(nvml, nvml.nvmlDeviceGetHandleByIndex, n) for n in range(count)]
        every = [NvidiaDevice(nvml, handle) for handle in handles if handle is not None]
        return every if self._visible is None else list(_chosen(every, self._visible))


def _chosen(devices: Sequence[NvidiaDevice], visible: str) -> Iterable[NvidiaDevice]:
    """As CUDA reads the variable: numbers or beginnings of UUIDs, up to the first unknown one."""
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            yield devices[int(word)]
            continue
        named = [d for d in devices if word.startswith("GPU-") and d.facts.uuid.startswith(word)]
        if len(named) != 1:
            return
        yield named[0]


def _initialised(nvml: Any | None) -> Any | None:
    if nvml is None:
        try:
            import pynvml as nvml
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _quiet(nvml: Any, question: Callable[..., T], *arguments: object) -> T | None:
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: object) -> str:
    """Older bindings answer in bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
