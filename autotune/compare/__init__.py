"""Comparison of configurations with the baseline, in confirmation rounds of fresh runs.

Entry point: `compare.comparison`. Everything here is a pure function of a study. Imports `model`,
`statistics` and `loss`.
"""
