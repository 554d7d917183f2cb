"""Removal of processes and files that earlier searches left on this machine.

Entry points: `cleanup.dead_drivers` at the start of a command, and `cleanup.clean` for `autotune clean`.
"""
