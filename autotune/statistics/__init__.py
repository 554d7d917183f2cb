"""Intervals of throughputs and ratios, means of measurement windows, and the scatter between runs.

Entry point: `statistics.intervals`. Imports `model` and the standard library only.
"""
