"""The loss guard: whether a configuration keeps the baseline's loss, from the losses of both.

Entry point: `loss.loss_guard`. Imports `model` and `statistics`.
"""
