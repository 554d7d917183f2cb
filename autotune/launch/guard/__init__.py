"""The guard process: owns one trial's process tree, and ends all of it.

Runs by its path with the standard library only (``python -S -E guard.py``); imports nothing of autotune but
its neighbours in this folder.
"""
