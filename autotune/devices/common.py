"""Interface of accelerators. Standard library only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.facts import DeviceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One sample of a device; None for unavailable values.

    Args:
        used_bytes: Memory in use by all processes, contexts included.
        sm_clock_mhz: Clock of the multiprocessors.
        memory_clock_mhz: Clock of the memory.
        temperature_c: Chip temperature in degrees Celsius.
        power_w: Present power.
        slowdowns: Reasons for clocks reduced by hardware: ``hw_slowdown``, ``hw_thermal``,
            ``hw_power_brake``; ``sw_thermal`` and ``sw_power_cap`` by the driver.
        pids: Processes that may compute on it, as far as visible to this process; display servers are left
            out.
        busy_pids: Processes of any kind that recently used it; None if the driver does not report use per
            process.
        ecc_errors: Uncorrectable memory errors since the driver was loaded.
        busy_frac: Share of the time since the previous sample in which it computed.
        tensor_frac: The same for its tensor units.
        dram_frac: Share of its memory bandwidth in use.
    """

    used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    slowdowns: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    busy_pids: tuple[int, ...] | None = None
    ecc_errors: int | None = None
    busy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None

    @property
    def is_throttled(self) -> bool:
        """Hardware holds the clock down: what is timed now does not count."""
        return bool({"hw_slowdown", "hw_thermal", "hw_power_brake"} & set(self.slowdowns))


class Device(ABC):
    """One accelerator.

    Contract: nothing here raises for what a driver lacks or refuses; it is None or empty then.
    """

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Constant facts."""

    @property
    def is_silent(self) -> bool:
        """Whether it has not reported its identity yet; possible only with a time limit."""
        return False

    @abstractmethod
    def sample(self) -> DeviceSample:
        """Return a sample of the present state."""

    def energy_j(self) -> float | None:
        """Return joules by its counter, from any beginning; None where it has none of its own."""
        return None
