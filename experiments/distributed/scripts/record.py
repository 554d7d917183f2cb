"""What every script here writes at its end: its parameters, steps and samples."""

import json
from pathlib import Path

import torch.distributed as dist


def finish(model, steps, samples):
    """Write ``rank0.json``, ``rank1.json``, ... into the working directory."""
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    weights = [number for p in parameters for number in p.detach().double().flatten().tolist()]
    text = json.dumps({"weights": weights, "steps": steps, "samples": samples})
    Path(f"rank{dist.get_rank()}.json").write_text(text)
