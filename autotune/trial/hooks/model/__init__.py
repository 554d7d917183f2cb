"""Hooks on the trained module: its calls, outputs, random numbers and compilation."""
