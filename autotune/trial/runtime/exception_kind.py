"""Failure kind of an exception."""

from __future__ import annotations

from autotune.protocol import device_errors


def kind_of(error: BaseException) -> str:
    """Return the failure kind of an exception that ended the script or the counting of steps."""
    name, text = type(error).__name__, str(error)
    of_device = device_errors.kind_of(f"{name}: {text}")
    if of_device:
        return of_device
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in text or "Cannot allocate memory" in text:
        return "oom_host"
    return "crash_exit"
