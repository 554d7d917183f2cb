"""Looks at the accelerators while a trial runs: its memory, others' processes, clocks held down."""

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
"""Programs that draw the screen: always there, and no load worth the name."""


def device_sampler(
    tree_pids: Callable[[], Collection[int]],
    devices: Sequence[common.Device],
    told_uuids: Callable[[], Collection[str]] = tuple,
) -> Callable[[], DeviceReading | None] | None:
    """What looks at the trial's accelerators once.

    A device is the trial's once a process of the trial was seen on it, or once the trial has named it;
    the only device there is, is the trial's anyhow. Where the driver names processes by the pids of
    another namespace (containers), no process of the trial is found, and none is called foreign.

    A process that only holds memory takes nothing from a trial: a neighbour is foreign while the driver says
    that it computes. Where the driver does not say, it is told of as resident and blamed for nothing.

    Args:
        tree_pids: Pids of the trial's processes now.
        devices: As `autotune.devices.find.find_devices` gives them.
        told_uuids: UUIDs of the devices that the trial itself says it uses.

    Returns:
        None where there is no device; what gives None where nothing is known of those that are the trial's.
    """
    if not devices:
        return None
    used = set([0] if len(devices) == 1 else [])

    def sample() -> DeviceReading | None:
        t_ns = time.perf_counter_ns()
        tree = set(tree_pids())
        seen = [device.sample() for device in devices]
        # Who began or ended meanwhile is no stranger.
        tree.update(tree_pids())
        at_home = {n for n, s in enumerate(seen) if tree & set(s.pids)}
        others = {n: {p for p in seen[n].pids if p not in tree and not draws(p)} for n in at_home}
        told = set(told_uuids())
        used.update(at_home, (n for n, d in enumerate(devices) if told and d.facts.uuid in told))
        if all(seen[n] == _UNKNOWN for n in used):
            # Not even that nobody else computes there.
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
    """Whether a process is one that draws the screen."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() in DISPLAYS
    except OSError:
        return False
