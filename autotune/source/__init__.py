"""Analysis of a training script's syntax tree: its loops, assignments and constants.

No code is executed. Imports `model` and the standard library only.
"""
