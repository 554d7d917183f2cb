"""A pick as the configuration file of `accelerate launch`, as `accelerate config` writes it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from autotune.export.formats.content import Exported, Left, fields_of, translated, why_left
from autotune.export.formats.parallel import accelerator_argument
from autotune.knobs.frameworks import ACCELERATOR
from autotune.model.distributed_launch import nodes_of, ranks_of

if TYPE_CHECKING:
    from autotune.export.formats.content import TunedValues
    from autotune.model.change import Change

_ONE_PROCESS: Final[dict[str, Any]] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "NO",
    "downcast_bf16": False,
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 1,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
}
"""One process on one machine."""
_FORMATS: Final = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerate_config(tuned: TunedValues) -> Exported:
    """Return a complete file for ``accelerate launch --config_file``.

    Unknown keys are an error there, so every key is one of `ClusterConfig`.
    """
    dynamo: dict[str, Any] = {}
    config = {**_ONE_PROCESS, "use_cpu": not tuned.on_device, **_processes(tuned)}
    config["mixed_precision"] = _FORMATS.get(str(tuned.knobs.get("precision", "fp32")), "no")
    included: list[Change] = []
    left: list[Left] = []
    for change in tuned.changes:
        found = fields_of(change, ACCELERATOR, tuned, or_arguments=change.knob == "precision")
        if found is None and (call := accelerator_argument(change)):
            found = f"the file has no key for it; {call}"
        found = found or why_left(change, "the file")
        if isinstance(found, str):
            left.append(Left(knob=change.knob, value=change.value, reason=found))
            continue
        included.append(change)
        for key, value in found.items():
            (dynamo if key.startswith("dynamo_") else config)[key] = value
    if dynamo:
        config["dynamo_config"] = dynamo
    return Exported(
        text=yaml.safe_dump(config, sort_keys=True, default_flow_style=False),
        data=config,
        included=tuple(change.knob for change in included),
        left=tuple(left),
        notes=(*translated(included, ACCELERATOR), *_notes(included), *_about_device(tuned)),
    )


def _processes(tuned: TunedValues) -> dict[str, Any]:
    """Return the keys for the processes that the search started; empty for a single one."""
    count, nodes = ranks_of(tuned.launcher), nodes_of(tuned.launcher)
    if count * nodes == 1:
        return {}
    # Its launcher starts several processes under this type alone; on a CPU, MULTI_CPU is for mpirun.
    return {
        "distributed_type": "MULTI_GPU",
        "num_machines": nodes,
        "num_processes": count * nodes,
        "use_cpu": False,
    }


def _about_device(tuned: TunedValues) -> list[str]:
    """Return notes on the training device: a GPU of the machine does not show that the script used it."""
    if _processes(tuned):
        return ["without a GPU, the script has to use the CPU itself: Accelerator(cpu=True)"]
    return ["a GPU was there; where the script trained on the CPU, set `use_cpu: true`"] * tuned.on_device


def _notes(included: list[Change]) -> list[str]:
    knobs = [change.knob for change in included]
    if "compile_mode" in knobs and "compile_shapes" not in knobs:
        return ["`accelerate launch` compiles for fixed shapes unless `dynamo_use_dynamic` is true"]
    return []
