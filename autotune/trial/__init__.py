"""Trial process: the part of autotune inside the user's training; the only package that may import torch.

Entry point: ``python -m autotune.trial`` (`__main__`), which installs the hooks (`entry.trial_runtime`) and
runs the script. `hooks` observe the training, `actuators` change it, `measure` times it. A fault in here
never reaches the script. Imports `knobs`, `protocol` and below.
"""
