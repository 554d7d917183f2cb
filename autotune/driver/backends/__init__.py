"""Loops that run the trials of a session: in child processes of this one, or as a Ray Tune experiment.

Entry points: `backends.inline` and `backends.ray_tune`, the only module that imports ray.
"""
