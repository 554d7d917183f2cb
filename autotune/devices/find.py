"""Accelerators of this machine. pynvml is imported on the call, not before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.devices.nvidia import NvidiaDevices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.devices.common import Device


def find_devices(environ: Mapping[str, str] | None = None) -> Sequence[Device]:
    """Return the accelerators visible to a process with this environment; empty on a CPU machine.

    Args:
        environ: Environment of the process; None for that of this process.
    """
    names = os.environ if environ is None else environ
    return NvidiaDevices(visible=names.get("CUDA_VISIBLE_DEVICES")).devices()


def why_unread(dev: Path = Path("/dev")) -> str:
    """Return why NVML cannot be read although the driver's device files exist; empty if it can.

    Args:
        dev: Folder of the device files.
    """
    return NvidiaDevices().why_not if any(dev.glob("nvidia*")) else ""
