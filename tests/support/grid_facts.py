"""What the baselines of the workloads would show on a machine with two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.facts import Facts, HostFacts, LoaderFacts, ModelFacts, OptimizerFacts, RunFacts
from autotune.inspection.script import script_facts

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
    "vision_digits": {"batch": 32, "samples": 1437, "has_4d": True, "random": True},
    "text_chargpt": {"batch": 16, "samples": 4891},
    "tabular_mlp": {"batch": 456, "samples": 456, "kernel_given": True, "fused": True},
    "speech_vowels": {"batch": 32, "samples": 270},
}
NAMES = sorted(_SHOWN)
"""Workloads that train on a CPU."""


def facts(name: str) -> Facts:
    """Of one workload; what is not told stands as in a plain loop."""
    shown = _SHOWN[name]
    batch, samples = shown["batch"], shown["samples"]
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
        ),
        model=ModelFacts(name="Net", has_4d=shown.get("has_4d", False)),
        optimizer=OptimizerFacts(
            name="AdamW",
            can_fuse=True,
            fused=shown.get("fused", False),
            kernel_given=shown.get("kernel_given", False),
        ),
        samples_source="loader",
        effective_batch=batch,
        zero_grad_seen=True,
        reduction="mean",
        threads=2,
        values={"batch_size": batch, "threads": 2, "wait_policy": "unset", "malloc": "glibc"},
        versions={"torch": "2.13.0"},
    )
    run = replace(run, values={**run.values, "gc_control": "auto"})
    script = script_facts(str(WORKLOADS / f"{name}.py"))
    return Facts(host=HOST, script=script, run=run, effective_batch_rule="keep")
