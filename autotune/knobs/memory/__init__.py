"""Knobs of device memory."""
