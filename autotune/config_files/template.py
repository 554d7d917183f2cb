"""The commented template that `autotune spaces init` writes."""

from __future__ import annotations


def template() -> str:
    """Return a valid space file in which every part of the format is named, most of them as comments."""
    return _TEMPLATE


_TEMPLATE = """\
# A search space of your own: autotune search train.py --space ./FILE
# Check it with: autotune spaces validate ./FILE      All knobs: autotune inspect --knobs
schema: autotune.space/v1
description: What this space is for.

# Start from a preset (autotune spaces list) or from another file, relative to this one.
extends: default

# Knob -> values to try, most promising first. Values that your script or machine cannot have are left out.
knobs:
  precision: [fp32, bf16]
  num_workers: auto               # auto: the values that the knob proposes itself
#  batch_size: [x0.5, x1, x2]     # relative to the script's own; the effective batch stays the same
#  threads: {low: 1, high: 8, step: 1}
#  tf32: ~                        # remove a knob that the preset has

# Options of your script, variables and keyword arguments as knobs. effect: EXACT leaves the arithmetic
# unchanged, NUMERIC changes rounding, TRAINING changes the training (searched with --allow NAME only).
# declare:
#   - {name: fused_loss, effect: NUMERIC, values: [0, 1], flag: "--fused-loss"}
#   - {name: nccl_sockets, effect: EXACT, values: [1, 4], env: NCCL_NSOCKS_PERTHREAD}
#   - {name: foreach, effect: NUMERIC, values: [false, true], keyword: "torch.optim.AdamW:foreach"}

# Upper bound on peak memory: a share, or an amount such as 6GiB.
# constraints: {peak_memory: {at_most: 0.92}}

# Configurations to try first.
start:
  - {precision: bf16}
"""
