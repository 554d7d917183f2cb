"""Faults injected into the real code, and counted: one module per kind, each with its cases and one `run`."""
