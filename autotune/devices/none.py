"""The accelerator of a machine that has none. Standard library only."""

from __future__ import annotations

from autotune.devices.common import Device, DeviceSample
from autotune.model.facts import DeviceFacts


class NoDevice(Device):
    """Null object for machines without a device, so that callers need no special case."""

    @property
    def facts(self) -> DeviceFacts:
        """An unnamed device without memory."""
        return DeviceFacts(name="", uuid="", memory_bytes=0)

    def sample(self) -> DeviceSample:
        """Return a sample without values."""
        return DeviceSample()
