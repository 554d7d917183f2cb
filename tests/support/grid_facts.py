"""What the baselines of the workloads would show on a machine with two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.inspection.script import script_facts
from autotune.model.facts import (
    AttentionFacts,
    BlockFacts,
    Facts,
    HostFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    RunFacts,
)

WORKLOADS = Path(__file__).parents[2] / "experiments" / "workloads"
GRIDS = WORKLOADS.parent / "grids"
FILES = sorted(GRIDS.glob("*/grid.json"))

HOST = HostFacts(
    cpus=2,
    physical_cores=2,
    memory_bytes=16 << 30,
    cpu_flags=("amx_bf16", "avx512_bf16"),
    cpu_model="Some CPU",
    python="3.11.7",
    versions={"torch": "2.13.0"},
    cxx="g++",
    libc="glibc 2.36",
    huge_pages="madvise",
)

_SHOWN: dict[str, dict[str, Any]] = {
    "photos_denoise": {"batch": 16, "samples": 8000, "has_4d": True},
    "vision_digits": {"batch": 32, "samples": 1437, "has_4d": True, "random": True, "blocks": 3},
    "text_chargpt": {"batch": 16, "samples": 4891, "blocks": 4, "attends": True},
    "tabular_mlp": {"batch": 456, "samples": 456, "kernel_given": True, "fused": True},
    "speech_vowels": {"batch": 32, "samples": 270, "varies": True},
    "events_hawkes": {"batch": 16, "samples": 4096, "factor": 4},
    "photos_colour": {"batch": 8, "samples": 2304, "factor": 4, "has_4d": True, "blocks": 2},
    "shapes_vit": {"batch": 32, "samples": 6016, "blocks": 4, "attends": True},
    "weblog_sessions": {"batch": 24, "samples": 2400, "random": True, "iterable": True, "varies": True},
}
NAMES = sorted(_SHOWN)
"""Workloads that train on a CPU."""


def facts(name: str) -> Facts:
    """Facts of one workload; unset ones are those of a plain loop."""
    shown = _SHOWN[name]
    batch, samples, factor = shown["batch"], shown["samples"], shown.get("factor", 1)
    iterable, blocks = shown.get("iterable", False), shown.get("blocks", 0)
    run = RunFacts(
        loader=LoaderFacts(
            site=f"{name}.py:90",
            batch_size=batch,
            num_workers=0,
            prefetch_factor=None,
            pin_memory=False,
            persistent_workers=False,
            length=-(-samples // batch),
            dataset_length=samples,
            random=shown.get("random", False),
            kind="iterable" if iterable else "map",
            shards=iterable,
            mp_context="fork",
        ),
        model=ModelFacts(
            name="Net",
            has_4d=shown.get("has_4d", False),
            blocks=BlockFacts(name="Block", count=blocks, alike=True, watched=True) if blocks else None,
        ),
        optimizer=OptimizerFacts(
            name="AdamW",
            can_fuse=True,
            fused=shown.get("fused", False),
            kernel_given=shown.get("kernel_given", False),
        ),
        samples_source="loader",
        effective_batch=batch * factor,
        backward_per_step=float(factor),
        own_accumulation=factor > 1,
        attention=AttentionFacts(calls=4, kernel="flash", dtype="float32") if shown.get("attends") else None,
        input_shapes_vary=shown.get("varies", False),
        zero_grad_seen=True,
        reduction="mean",
        threads=2,
        values={
            "batch_size": batch,
            "accumulation": factor,
            "threads": 2,
            "wait_policy": "unset",
            "malloc": "glibc",
        },
        versions={"torch": "2.13.0"},
    )
    run = replace(run, values={**run.values, "gc_control": "auto"})
    script = script_facts(str(WORKLOADS / f"{name}.py"))
    return Facts(host=HOST, script=script, run=run, effective_batch_rule="keep")
