"""Intervals, steady state and paired comparison, with their sources. Pure; standard library only."""
