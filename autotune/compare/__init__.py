"""Comparison of configurations with the baseline, in confirmation rounds of fresh runs.

Entry point: `compare.comparison`. All functions are pure functions of a study. May import `model`,
`statistics` and `loss`.
"""
