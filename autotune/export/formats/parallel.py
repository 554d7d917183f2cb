"""Knobs of several processes as arguments of `DistributedDataParallel`, and of what wraps it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autotune.model.change import Change
    from autotune.model.config import Value

DDP_ARGUMENTS: Final = {
    "ddp_bucket_cap_mb": "bucket_cap_mb",
    "ddp_find_unused_parameters": "find_unused_parameters",
    "ddp_gradient_as_bucket_view": "gradient_as_bucket_view",
    "ddp_static_graph": "static_graph",
}
"""Knob -> argument of the constructor, by the names of torch 2.13."""
_HOOKS: Final = {"fp16": "fp16_compress_hook", "bf16": "bf16_compress_hook"}
"""Value of ``ddp_comm_hook`` -> function of `torch.distributed.algorithms.ddp_comm_hooks.default_hooks`."""


def training_argument(change: Change) -> dict[str, Value] | None:
    """Return the field of `TrainingArguments` 5.23 that older releases lack; None for other knobs."""
    return {change.knob: change.value} if change.knob == "ddp_static_graph" else None


def strategy_argument(change: Change) -> str:
    """Return how Lightning's strategy has a value that is no literal; empty for other knobs."""
    hook = _HOOKS.get(str(change.value)) if change.knob == "ddp_comm_hook" else None
    return f"DDPStrategy(ddp_comm_hook=default_hooks.{hook})" if hook else ""


def accelerator_argument(change: Change) -> str:
    """Return how the script's own Accelerator has a value of DDP; empty for other knobs."""
    if (name := DDP_ARGUMENTS.get(change.knob)) is not None:
        value = f"{name}={change.value!r}"
    elif change.knob == "ddp_comm_hook" and str(change.value) in _HOOKS:
        value = f"comm_hook=DDPCommunicationHookType.{str(change.value).upper()}"
    else:
        return ""
    return f"Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({value})])"
