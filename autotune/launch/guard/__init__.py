"""The guard process, which owns one trial's process tree and ends all of it.

It runs by path with the standard library only (``python -S -E guard.py``) and imports nothing of autotune
outside this folder.
"""
