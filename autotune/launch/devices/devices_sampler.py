"""Samples of the accelerators during a trial: its memory, other processes, reduced clocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autotune.devices import common
from autotune.launch.result.host_samples import DeviceReading

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

N = TypeVar("N", int, float)

_UNKNOWN = common.DeviceSample()

DISPLAYS = frozenset(
    {"Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "mutter", "weston", "sway", "plasmashell"}
)
"""Display servers: always present, with negligible load."""


def device_sampler(
    tree_pids: Callable[[], Collection[int]],
    devices: Sequence[common.Device],
    reported_uuids: Callable[[], Collection[str]] = tuple,
) -> Callable[[], DeviceReading | None] | None:
    """Return a function that samples the trial's accelerators.

    A device is the trial's once one of its processes was seen on it, or once the trial has reported it. A
    single device is always the trial's. If the driver lists pids of another namespace (containers), no
    process of the trial is found, and none counts as foreign.

    A process that only holds memory does not slow a trial. A neighbour is foreign while the driver reports
    that it computes. Without such reports it is recorded as resident only.

    Args:
        tree_pids: Returns the pids of the trial's processes.
        devices: From `autotune.devices.find.find_devices`.
        reported_uuids: Returns the UUIDs of the devices that the trial has reported.

    Returns:
        None without devices. The function returns None if nothing is known about the trial's devices.
    """
    if not devices:
        return None
    used = set([0] if len(devices) == 1 else [])

    def sample() -> DeviceReading | None:
        t_ns = time.perf_counter_ns()
        tree = set(tree_pids())
        seen = [device.sample() for device in devices]
        # A process that started or ended between the readings is not foreign.
        tree.update(tree_pids())
        at_home = {n for n, s in enumerate(seen) if tree & set(s.pids)}
        others = {n: {p for p in seen[n].pids if p not in tree and not draws(p)} for n in at_home}
        reported = set(reported_uuids())
        used.update(at_home, (n for n, d in enumerate(devices) if reported and d.facts.uuid in reported))
        if all(seen[n] == _UNKNOWN for n in used):
            # Without a reading, other processes cannot be excluded.
            return None
        fullest = max(used, key=lambda n: seen[n].used_bytes or 0)
        return DeviceReading(
            t_ns=t_ns,
            used_bytes=seen[fullest].used_bytes or 0,
            foreign=any(pids & set(seen[n].busy_pids or ()) for n, pids in others.items()),
            resident=any(pids and seen[n].busy_pids is None for n, pids in others.items()),
            throttled=any(seen[n].is_throttled for n in used),
            total_bytes=devices[fullest].facts.memory_bytes,
            sm_clock_mhz=min(_known(seen[n].sm_clock_mhz for n in used), default=None),
            temperature_c=max(_known(seen[n].temperature_c for n in used), default=None),
            power_w=_sum(seen[n].power_w for n in used),
            ecc_errors=_sum(seen[n].ecc_errors for n in used),
            busy_frac=_mean(seen[n].busy_frac for n in used),
            tensor_frac=_mean(seen[n].tensor_frac for n in used),
            dram_frac=_mean(seen[n].dram_frac for n in used),
        )

    return sample


def _known(values: Iterable[N | None]) -> list[N]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[N | None]) -> N | None:
    known = _known(values)
    return sum(known[1:], known[0]) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def draws(pid: int) -> bool:
    """Return whether a process is a display server."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() in DISPLAYS
    except OSError:
        return False
