"""Knobs of the number format."""
