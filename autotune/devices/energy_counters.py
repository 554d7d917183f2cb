"""Energy by counters: RAPL of the processors, NVML of accelerators. Nothing is estimated from power.

Counters cover whole packages and devices, including other processes. RAPL wraps around after
``max_energy_range_uj``; on many systems only root may read it, and virtual machines have none. NVML's updates
every 20 to 100 ms, so a window of few seconds has an error of some per cent. Standard library only.
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.devices.common import Device

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"(?:intel|amd)-rapl:\d+")
"""Packages; zones below one (cores, memory controller) are already included in it."""
_MICRO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySample:
    """Counters at one moment, in joules since the meter was made.

    Args:
        t_ns: `time.perf_counter_ns()`.
        cpu_j: Of all processor packages; None where they cannot be read.
        device_j: UUID of an accelerator -> its own; those without a counter are left out.
    """

    t_ns: int
    cpu_j: float | None = None
    device_j: Mapping[str, float] = field(default_factory=dict[str, float])


def _is_package(zone: Path) -> bool:
    """Return whether a zone is a package, not the whole platform (psys), which includes the packages."""
    try:
        return (zone / "name").read_text(encoding="ascii").startswith("package")
    except FileNotFoundError:
        return True


class Rapl:
    """The packages' counters.

    Args:
        root: Where the kernel shows them.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        """Find what can be read."""
        self._last: dict[Path, int] = {}
        self._range: dict[Path, int] = {}
        self._sum_uj = 0
        self.why_not = ""
        """A sentence where nothing can be read, else empty."""
        try:
            zones = sorted(p for p in root.iterdir() if _PACKAGE.fullmatch(p.name) and _is_package(p))
        except OSError:
            zones = []
        if not zones:
            self.why_not = "This machine shows no energy counters of its processors."
        for zone in zones:
            try:
                self._last[zone] = _number(zone / "energy_uj")
                self._range[zone] = _number(zone / "max_energy_range_uj")
            except (OSError, ValueError) as error:
                self._last.clear()
                denied = isinstance(error, PermissionError)
                self.why_not = "The processors' energy counters " + (
                    "may be read by root only." if denied else "cannot be read."
                )
                return

    @property
    def exists(self) -> bool:
        """Whether they can be read."""
        return bool(self._last)

    def joules(self) -> float | None:
        """Return the energy since this object was created; None if unreadable.

        Must be called more often than a counter wraps around, which takes minutes at full load.
        """
        if not self._last:
            return None
        try:
            now = {zone: _number(zone / "energy_uj") for zone in self._last}
        except (OSError, ValueError):
            self._last.clear()
            self.why_not = "The processors' energy counters can no longer be read."
            return None
        for zone, count in now.items():
            moved = count - self._last[zone]
            self._sum_uj += moved if moved >= 0 else moved + self._range[zone]
        self._last = now
        return self._sum_uj * _MICRO


class Meter:
    """All counters of a machine that can be read.

    Args:
        devices: Accelerators.
        rapl: Of the processors; the machine's where None.
    """

    def __init__(self, devices: Sequence[Device] = (), rapl: Rapl | None = None) -> None:
        """Store the present value of every counter."""
        self._rapl = Rapl() if rapl is None else rapl
        self._first = {d.facts.uuid: joules for d in devices if (joules := d.energy_j()) is not None}
        self._devices = [d for d in devices if d.facts.uuid in self._first]

    @property
    def exists(self) -> bool:
        """There is a counter."""
        return self._rapl.exists or bool(self._devices)

    def sample(self) -> EnergySample:
        """Return their present values."""
        found: dict[str, float] = {}
        for device in self._devices:
            joules, uuid = device.energy_j(), device.facts.uuid
            # A reloaded driver restarts at zero.
            if joules is not None and joules >= self._first[uuid]:
                found[uuid] = joules - self._first[uuid]
        return EnergySample(t_ns=time.perf_counter_ns(), cpu_j=self._rapl.joules(), device_j=found)


def spent_j(points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float | None:
    """Energy between two moments, by lines between the samples around them; None where they lie outside.

    Args:
        points: Moment and joules, in order of time.
        begin_ns: Of the window.
        end_ns: Its end.
    """
    begin, end = _at(points, begin_ns), _at(points, end_ns)
    return None if begin is None or end is None else max(0.0, end - begin)


def _at(points: Sequence[tuple[int, float]], t_ns: int) -> float | None:
    for (t0, j0), (t1, j1) in itertools.pairwise(points):
        if t0 <= t_ns <= t1:
            return j0 if t1 == t0 else j0 + (j1 - j0) * (t_ns - t0) / (t1 - t0)
    return None


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
