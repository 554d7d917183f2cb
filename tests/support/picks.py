"""Picks for exports: one change by each way of every built-in knob."""

from __future__ import annotations

from dataclasses import replace

from autotune.export.formats.content import TunedValues
from autotune.knobs.common import LOADER
from autotune.knobs.registry import builtin
from autotune.model.change import Change, Constant, Env, Flag, Keyword, Patch, Spelling
from autotune.model.config import Value

VALUES: dict[str, Value] = {
    "accumulation": 4,
    "activation_checkpointing": "full",
    "allocator": "expandable_segments:True",
    "attention_backend": "flash",
    "batch_size": 64,
    "channels_last": True,
    "compile_mode": "max-autotune",
    "compile_region": "block",
    "compile_shapes": "dynamic",
    "cpu_affinity": "cores",
    "cuda_max_connections": 1,
    "cudnn_benchmark": True,
    "ddp_bucket_cap_mb": 50,
    "ddp_comm_hook": "fp16",
    "ddp_find_unused_parameters": False,
    "ddp_gradient_as_bucket_view": True,
    "ddp_no_sync": True,
    "ddp_powersgd_rank": 2,
    "ddp_shard_optimizer": True,
    "ddp_static_graph": True,
    "deepspeed_bucket_size": 50_000_000,
    "deepspeed_overlap_comm": True,
    "deepspeed_zero_stage": 2,
    "fp8": "rowwise",
    "fsdp_cpu_offload": True,
    "fsdp_param_dtype": "bfloat16",
    "fsdp_prefetch": 2,
    "fsdp_reshard_after_forward": False,
    "fsdp_shard_ranks": 2,
    "fused_optimizer": True,
    "gc_control": "freeze",
    "in_order": False,
    "malloc": "jemalloc",
    "memory_budget": 0.5,
    "mp_context": "forkserver",
    "nccl_algo": "Ring",
    "nccl_buffer_mb": 8,
    "nccl_max_channels": 8,
    "nccl_proto": "LL",
    "non_blocking": True,
    "num_workers": 4,
    "persistent_workers": True,
    "pin_memory": True,
    "precision": "bf16",
    "prefetch_factor": 8,
    "processes": 4,
    "pure_bf16": True,
    "set_to_none": True,
    "tf32": "high",
    "threads": 2,
    "wait_policy": "active",
}


def change(knob: str, value: Value, spelling: Spelling, *, delivered: str = "", site: str = "") -> Change:
    if not delivered and isinstance(spelling, (Flag, Env)):
        delivered = str(value)
    return Change(knob=knob, value=value, spelling=spelling, delivered=delivered, site=site)


def flag(knob: str, value: Value, *names: str, delivered: str = "") -> Change:
    return change(knob, value, Flag(names), delivered=delivered)


def switch(knob: str, value: Value, *names: str) -> Change:
    """An option without a value."""
    return Change(knob=knob, value=value, spelling=Flag(names))


def env(knob: str, value: Value, name: str, delivered: str = "") -> Change:
    return change(knob, value, Env(name), delivered=delivered)


def loader(name: str, value: Value, *, knob: str = "", site: str = "train.py:3") -> Change:
    return change(knob or name, value, Keyword(LOADER, name), site=site)


def argument(knob: str, value: Value, target: str, name: str) -> Change:
    return change(knob, value, Keyword(target, name))


def patch(knob: str, value: Value) -> Change:
    return change(knob, value, Patch())


def tuned(*changes: Change, on_device: bool = False, **knobs: Value) -> TunedValues:
    """A pick of these changes over these values of the script."""
    return TunedValues(
        changes=changes, knobs={**knobs, **{c.knob: c.value for c in changes}}, on_device=on_device
    )


def _written(way: Spelling) -> Spelling:
    """A way in the form that a change has."""
    if isinstance(way, Flag):
        return Flag(way.names[:1])
    return replace(way, names=way.names[:1], file="train.py", line=1) if isinstance(way, Constant) else way


def every_way() -> list[Change]:
    """Each way of each built-in knob, as a change of its own."""
    return [
        change(name, VALUES[name], _written(way))
        for name, knob in builtin().items()
        for way in knob.spellings
    ]
