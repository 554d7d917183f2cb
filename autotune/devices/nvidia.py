"""NVIDIA devices by NVML. The only module that imports pynvml, when it is first needed.

Harmless without a driver: there are no devices then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from autotune.devices.common import Device, DeviceSample
from autotune.model.facts import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_REASONS: Final = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h."""

_UNCORRECTED, _VOLATILE, _MIG_ENABLED = 1, 0, 1
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC (since the driver was loaded), MIG enabled."""

_NO_DATA = (0, 6)
"""NVML_ERROR_NOT_FOUND: no data for this query.

NVML_SUCCESS, which the binding raises for an empty list, means the same.
"""

_BUSY_ABOVE_PERCENT, _MOST_PERCENT = 5, 100
"""Least share of the multiprocessors' time that counts as busy; larger values than all of it are invalid."""
_GPM: Final = {"busy_frac": 1, "tensor_frac": 5, "dram_frac": 10}
"""NVML_GPM_METRIC_GRAPHICS_UTIL (anything runs), _ANY_TENSOR_UTIL, _DRAM_BW_UTIL; all in per cent."""

_BUSY_FOR_S = 2.0
"""Time for which a reported process counts as busy, as each is reported once a second or less."""


class NvidiaDevice(Device):
    """One device behind an NVML handle.

    Args:
        nvml: An initialised module.
        handle: Of the device, or of a part of it (MIG).
        whole: The device that the part belongs to, for what only a whole one reports: clocks, heat,
            power, errors of its memory. None for a whole device.
    """

    def __init__(self, nvml: Any, handle: Any, whole: Any | None = None) -> None:
        """Wrap a handle."""
        self._nvml = nvml
        self._handle = handle
        self._whole = handle if whole is None else whole
        self._facts: DeviceFacts | None = None
        self._last_sample_us: int | None = None
        """End of the last report of users of the device, on the driver's clock; None before the first."""
        self._busy_at_s: dict[int, float] = {}
        # Parts have other counters, and those of the whole device do not describe the part.
        self._counters = _Counters(nvml, handle) if whole is None else None

    @property
    def facts(self) -> DeviceFacts:
        """Name, UUID, memory, compute capability and power limit, read once."""
        if self._facts is None:
            self._facts = self._read_facts()
        return self._facts

    def _read_facts(self) -> DeviceFacts:
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        capability = self._ask("nvmlDeviceGetCudaComputeCapability")
        milliwatts = self._ask_whole("nvmlDeviceGetEnforcedPowerLimit")
        major, minor = capability or self._ask_whole("nvmlDeviceGetCudaComputeCapability") or (0, 0)
        return DeviceFacts(
            name=_text(self._ask("nvmlDeviceGetName") or self._ask_whole("nvmlDeviceGetName")),
            uuid=_text(self._ask("nvmlDeviceGetUUID")),
            memory_bytes=0 if memory is None else int(memory.total),
            capability=(int(major), int(minor)),
            driver=_text(_quiet(self._nvml, "nvmlSystemGetDriverVersion")),
            power_limit_w=0.0 if milliwatts is None else milliwatts / 1000,
        )

    def sample(self) -> DeviceSample:
        """Memory, clocks, heat, power, slow-downs, errors and processes, now."""
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        milliwatts = self._ask_whole("nvmlDeviceGetPowerUsage")
        sm, mem = getattr(nvml, "NVML_CLOCK_SM", 1), getattr(nvml, "NVML_CLOCK_MEM", 2)
        sensor = getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
        shares = {} if self._counters is None else self._counters.shares()
        return DeviceSample(
            used_bytes=None if memory is None else int(memory.used),
            sm_clock_mhz=self._ask_whole("nvmlDeviceGetClockInfo", sm),
            memory_clock_mhz=self._ask_whole("nvmlDeviceGetClockInfo", mem),
            temperature_c=self._ask_whole("nvmlDeviceGetTemperature", sensor),
            power_w=None if milliwatts is None else milliwatts / 1000,
            slowdowns=self._slowdowns(),
            pids=self._pids(),
            busy_pids=self._busy_pids(),
            ecc_errors=self._ask_whole("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            busy_frac=shares.get("busy_frac"),
            tensor_frac=shares.get("tensor_frac"),
            dram_frac=shares.get("dram_frac"),
        )

    def energy_j(self) -> float | None:
        """Return joules since the driver was loaded; None for a part of a device, which has no counter."""
        if self._whole is not self._handle:
            return None
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else int(millijoules) / 1000

    def _slowdowns(self) -> tuple[str, ...]:
        bits = self._ask_whole("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask_whole("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(word for bit, word in _REASONS.items() if bits is not None and int(bits) & bit)

    def _pids(self) -> tuple[int, ...]:
        return tuple(sorted({int(p.pid) for p in self._processes("nvmlDeviceGetComputeRunningProcesses")}))

    def _busy_pids(self) -> tuple[int, ...] | None:
        """Return the processes that computed since the driver's last report."""
        since_us = self._last_sample_us
        samples = self._ask("nvmlDeviceGetProcessUtilization", since_us or 0, nothing=())
        if samples is None:
            return None
        known = [s for s in samples if int(s.smUtil) <= _MOST_PERCENT]
        self._last_sample_us = max([since_us or 0, *(int(s.timeStamp) for s in known)])
        if since_us is None:
            # What was before the first look is not about now.
            return ()
        now_s = time.monotonic()
        for sample in sorted(known, key=lambda s: int(s.timeStamp)):
            if int(sample.smUtil) > _BUSY_ABOVE_PERCENT:
                self._busy_at_s[int(sample.pid)] = now_s
            else:
                self._busy_at_s.pop(int(sample.pid), None)
        self._busy_at_s = {pid: at for pid, at in self._busy_at_s.items() if now_s - at <= _BUSY_FOR_S}
        return tuple(sorted(self._busy_at_s))

    def _processes(self, name: str) -> Sequence[Any]:
        """Return the processes; older drivers have an older form of the query."""
        for version in ("", "_v3", "_v2"):
            found = self._ask(name + version)
            if found is not None:
                return found
        return ()

    def _ask(self, name: str, *arguments: object, nothing: object = None) -> Any | None:
        return _quiet(self._nvml, name, self._handle, *arguments, nothing=nothing)

    def _ask_whole(self, name: str, *arguments: object) -> Any | None:
        return _quiet(self._nvml, name, self._whole, *arguments)


class _Counters:
    """Utilization counters of a device between two samples (GPM; Hopper and newer).

    Args:
        nvml: An initialised module.
        handle: Handle of a whole device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._exist: bool | None = None
        self._before: Any = None
        self._spare: Any = None

    def shares(self) -> dict[str, float]:
        """Shares of the time since the call before; empty at the first, and where there are no counters."""
        nvml = self._nvml
        if self._exist is None:
            support = _quiet(nvml, "nvmlGpmQueryDeviceSupport", self._handle)
            self._exist = support is not None and bool(support.isSupportedDevice)
        if not self._exist:
            return {}
        # Two are enough for ever: what was read last, and what was read before that.
        if self._spare is None:
            self._spare = _quiet(nvml, "nvmlGpmSampleAlloc")
        now = self._spare
        if now is None or _quiet(nvml, "nvmlGpmSampleGet", self._handle, now) is None:
            return {}
        before, self._before, self._spare = self._before, now, self._before
        return {} if before is None else self._between(before, now)

    def _between(self, before: Any, now: Any) -> dict[str, float]:
        query = _quiet(self._nvml, "c_nvmlGpmMetricsGet_t")
        if query is None:
            return {}
        query.version = getattr(self._nvml, "NVML_GPM_METRICS_GET_VERSION", 1)
        query.numMetrics = len(_GPM)
        query.sample1, query.sample2 = before, now
        for place, number in enumerate(_GPM.values()):
            query.metrics[place].metricId = number
        if _quiet(self._nvml, "nvmlGpmMetricsGet", query) is None:
            return {}
        found: dict[str, float] = {}
        for place, name in enumerate(_GPM):
            percent = float(query.metrics[place].value)
            if int(query.metrics[place].nvmlReturn) == 0 and 0.0 <= percent <= _MOST_PERCENT:
                found[name] = percent / _MOST_PERCENT
        return found


class NvidiaDevices:
    """The NVIDIA devices of this machine that a process started now would see.

    Args:
        nvml: The module pynvml or one like it; None imports it, and finds nothing where that
            fails or no driver runs.
        visible: ``CUDA_VISIBLE_DEVICES``; None: all.
    """

    def __init__(self, nvml: Any | None = None, *, visible: str | None = None) -> None:
        """Connect to the driver, if there is one."""
        self._nvml, self._refused = _initialised(nvml)
        self._visible = visible

    @property
    def why_not(self) -> str:
        """Return why the driver could not be queried; empty if it could."""
        return "" if self._refused is None else str(self._refused)

    def devices(self) -> Sequence[Device]:
        """Return the devices in NVML's order, that of the bus; for a divided device, its parts.

        CUDA orders different devices by speed unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``. Then a number
        in ``CUDA_VISIBLE_DEVICES`` may mean another device than here, a UUID never does.
        """
        nvml = self._nvml
        if nvml is None:
            return ()
        count = _quiet(nvml, "nvmlDeviceGetCount") or 0
        handles = [_quiet(nvml, "nvmlDeviceGetHandleByIndex", n) for n in range(count)]
        whole = [NvidiaDevice(nvml, handle) for handle in handles if handle is not None]
        parts = {n: list(self._parts(h)) for n, h in enumerate(h for h in handles if h is not None)}
        if self._visible is None:
            # A process sees one part of a divided device and no more.
            return [parts[n][0] if parts[n] else device for n, device in enumerate(whole)]
        return list(_chosen(whole, parts, self._visible))

    def _parts(self, handle: Any) -> Iterator[NvidiaDevice]:
        """Yield the instances of a device in MIG mode, in order."""
        nvml = self._nvml
        mode = _quiet(nvml, "nvmlDeviceGetMigMode", handle)
        if not mode or int(mode[0]) != _MIG_ENABLED:
            return
        for n in range(_quiet(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = _quiet(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, n)
            if part is not None:
                yield NvidiaDevice(nvml, part, handle)


def _chosen(
    whole: Sequence[NvidiaDevice], parts: dict[int, list[NvidiaDevice]], visible: str
) -> Iterable[NvidiaDevice]:
    """Return the visible devices, by CUDA's and torch's rules (`torch.cuda._parse_visible_devices`, 2.13).

    Numbers, or prefixes of UUIDs of devices or of their parts: up to the first invalid one, and none at all
    if one is named twice.
    """
    found: list[NvidiaDevice] = []
    for word in (part.strip() for part in visible.split(",")):
        device = _named(whole, parts, word)
        if device is None:
            break
        if device in found:
            return ()
        found.append(device)
    return found


def _named(
    whole: Sequence[NvidiaDevice], parts: dict[int, list[NvidiaDevice]], word: str
) -> NvidiaDevice | None:
    number = _leading_number(word)
    if number is not None:
        if number >= len(whole):
            return None
        return parts[number][0] if parts[number] else whole[number]
    if word.startswith("MIG-"):
        candidates = [part for group in parts.values() for part in group]
        matching = [d for d in candidates if d.facts.uuid.startswith(word)]
        return matching[0] if len(matching) == 1 else None
    matching = [n for n, d in enumerate(whole) if word.startswith("GPU-") and d.facts.uuid.startswith(word)]
    if len(matching) != 1:
        return None
    return parts[matching[0]][0] if parts[matching[0]] else whole[matching[0]]


def _leading_number(word: str) -> int | None:
    """``1gpu2`` is 1, as C's strtoul has it."""
    digits = ""
    for letter in word:
        if not letter.isdecimal():
            break
        digits += letter
    return int(digits) if digits else None


def _initialised(nvml: Any | None) -> tuple[Any | None, Exception | None]:
    """Return the module where it has reached the driver, else None and why it has not."""
    if nvml is None:
        try:
            import pynvml as nvml
        except ImportError as error:
            return None, error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, error
    return nvml, None


def _quiet(nvml: Any, name: str, *arguments: object, nothing: object = None) -> Any | None:
    """Return the answer to a query; None if binding, driver, device or permissions do not provide it.

    Not all of that is an `NVMLError`: a binding newer than the driver raises an error of its own, and a name
    that is not UTF-8 a `UnicodeDecodeError`.

    Args:
        nvml: The module.
        name: Name of the query.
        arguments: Its arguments.
        nothing: The result if the device has no data.
    """
    question: Callable[..., Any] | None = getattr(nvml, name, None)
    if question is None:
        return None
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
    try:
        return question(*arguments)
    except (nvml.NVMLError, mismatch, OSError, ValueError, TypeError, AttributeError) as error:
        return nothing if getattr(error, "value", None) in _NO_DATA else None


def _text(value: object) -> str:
    """Older bindings answer in bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
