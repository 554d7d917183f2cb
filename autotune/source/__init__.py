"""What the syntax tree of a training script shows: its loops, its assignments and its constants.

Nothing is executed. Imports `model` and the standard library only.
"""
