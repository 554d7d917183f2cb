"""What an accelerator tells about itself. Standard library only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.model.facts import DeviceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One look at a device; None where it cannot tell.

    Args:
        used_bytes: Memory in use by everybody, contexts included.
        sm_clock_mhz: Clock of the multiprocessors.
        memory_clock_mhz: Clock of the memory.
        temperature_c: Of the chip, degrees Celsius.
        power_w: Drawn now.
        slowdowns: Reasons why the clock is held down by hardware: ``hw_slowdown``,
            ``hw_thermal``, ``hw_power_brake``; ``sw_thermal`` and ``sw_power_cap`` by the driver.
        pids: Processes that may compute on it, as far as this process may see them; those that only draw
            are left out.
        busy_pids: Those of any kind that kept it busy a little while ago; None where the driver does not
            tell what each of them does.
        ecc_errors: Memory errors that could not be corrected, since the driver was loaded.
        busy_frac: Share of the time since the look before in which anything computed on it.
        tensor_frac: The same of its tensor units.
        dram_frac: Share of its memory's bandwidth that was used meanwhile.
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
        """What does not change."""

    @property
    def is_silent(self) -> bool:
        """It has not said yet which one it is; so only where an answer is not waited for."""
        return False

    @abstractmethod
    def sample(self) -> DeviceSample:
        """What does."""

    def energy_j(self) -> float | None:
        """Return joules by its counter, from any beginning; None where it has none of its own."""
        return None
