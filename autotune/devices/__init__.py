"""Accelerators and energy counters of the machine."""
