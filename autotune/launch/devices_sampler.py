"""Looks at the accelerators while a trial runs: its memory, others' processes, clocks held down."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.launch.measure import DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autotune.devices.common import Device

DISPLAYS = frozenset(
    {"Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "mutter", "weston", "sway", "plasmashell"}
)
"""Programs that draw the screen: always there, and no load worth the name."""


def device_sampler(
    tree_pids: Callable[[], Collection[int]], devices: Sequence[Device]
) -> Callable[[], DeviceSample | None] | None:
    """What looks at the trial's accelerators once.

    A device is the trial's once a process of the trial was seen on it; the only device there is, is
    the trial's anyhow. Where the driver names processes by the pids of another namespace (containers),
    no process of the trial is found, and none is called foreign.

    Args:
        tree_pids: Pids of the trial's processes now.
        devices: As `autotune.devices.find.find_devices` gives them.

    Returns:
        None where there is no device.
    """
    if not devices:
        return None
    used = set([0] if len(devices) == 1 else [])

    def sample() -> DeviceSample | None:
        t_ns = time.perf_counter_ns()
        tree = set(tree_pids())
        seen = [device.sample() for device in devices]
        # Who began or ended meanwhile is no stranger.
        tree.update(tree_pids())
        at_home = {n for n, s in enumerate(seen) if tree & set(s.pids)}
        used.update(at_home)
        if not used:
            return None
        return DeviceSample(
            t_ns=t_ns,
            used_bytes=max(seen[n].used_bytes or 0 for n in used),
            foreign=any(pid not in tree and not _draws(pid) for n in at_home for pid in seen[n].pids),
            throttled=any(seen[n].is_throttled for n in used),
        )

    return sample


def _draws(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() in DISPLAYS
    except OSError:
        return False
