"""Scripts with 2 and 4 ranks under all EXACT knobs that apply: the parameters are those of the plain run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from autotune.knobs.common import LOADER
from autotune.knobs.frameworks import ARGUMENTS, DEEPSPEED, LIGHTNING_DDP
from autotune.knobs.registry import builtin
from autotune.launch.direct_run import run_plain
from autotune.model.change import Change, Keyword, Spelling
from autotune.model.distributed_launch import several
from autotune.space.launch_command import build_launch

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOLERANCE = 1e-4
"""Of the largest difference of a parameter to the largest parameter: another order of summation."""
_DDP = {"ddp_bucket_cap_mb": 1, "ddp_gradient_as_bucket_view": True, "cpu_affinity": "block"}
_SHARED = {"ddp_shard_optimizer": True}
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "plain_ddp": ({**_DDP, "ddp_static_graph": True}, _SHARED, {**_DDP, **_SHARED}),
    "norm_unused": (_DDP, {"ddp_find_unused_parameters": False}, {"ddp_static_graph": True}, _SHARED),
    "accumulates": ({"ddp_no_sync": 3}, {**_DDP, **_SHARED, "ddp_no_sync": 3}),
    "shards": (
        {"fsdp_reshard_after_forward": False, "fsdp_prefetch": 2},
        {"fsdp_shard_ranks": 2},
    ),
    "accelerated": (_DDP, {"ddp_static_graph": True}),
    "trainer": (_DDP,),
    "lit": (_DDP,),
    "zero_stage": ({"deepspeed_zero_stage": 2}, {"deepspeed_bucket_size": 2000}),
    "trainer_zero": ({"deepspeed_zero_stage": 2}, {"deepspeed_bucket_size": 2000}),
    "spawns": ({**_DDP, "ddp_static_graph": True}, _SHARED),
}
"""Script -> settings that are tried together."""
NEEDS = {
    "accelerated": "accelerate",
    "trainer": "transformers",
    "lit": "lightning",
    "zero_stage": "deepspeed",
    "trainer_zero": "deepspeed",
}
"""Script -> package without which it is skipped."""
_TARGETS = {
    "trainer": ARGUMENTS,
    "lit": LIGHTNING_DDP,
    "zero_stage": DEEPSPEED,
    "trainer_zero": DEEPSPEED,
}
"""Script -> the framework's options that deliver what they can."""
_MICRO = {"plain_ddp": 8, "accumulates": 8}
"""Script -> samples per micro-batch, for cases with another number of processes."""


def cases() -> list[dict[str, Any]]:
    """Return every case: a script, its number of ranks, and settings."""
    found = [
        {
            "key": f"{script} x{ranks} {_text(settings)}",
            "script": script,
            "ranks": ranks,
            "settings": settings,
        }
        for ranks in (2, 4)
        for script, tried in CASES.items()
        for settings in (_possible(each, ranks) for each in (*tried, *_other_counts(script, ranks)))
        # A copy of the parameters over both of two processes is what FSDP does by itself.
        if settings.get("fsdp_shard_ranks") != ranks
    ]
    # Each script once before any is tried with other settings.
    places = Counter[tuple[int, str]]()
    order: list[tuple[int, int]] = []
    for case in found:
        which = (case["ranks"], case["script"])
        order.append((case["ranks"], places[which]))
        places[which] += 1
    return [case for _, case in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def _other_counts(script: str, ranks: int) -> list[dict[str, Any]]:
    """Return other numbers of processes at the same effective batch."""
    micro = _MICRO.get(script)
    counts = [n for n in (1, 2, 4) if n != ranks] if micro else []
    return [{"processes": n, "batch_size": micro * ranks // n} for n in counts]


def _possible(settings: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return settings without a block of CPUs for each rank where there are fewer CPUs than ranks."""
    few = len(os.sched_getaffinity(0)) < ranks
    return {knob: value for knob, value in settings.items() if not (few and knob == "cpu_affinity")}


def run(case: dict[str, Any], plain: dict[tuple[str, int], list[dict[str, Any]]]) -> dict[str, Any]:
    """Train with and without the settings; return the row of this case.

    Args:
        case: One of `cases`.
        plain: What the unchanged script wrote, by script and ranks; filled here.
    """
    which = (case["script"], case["ranks"])
    if which not in plain:
        plain[which] = _train(*which, {})[0]
    before = plain[which]
    after, readings = _train(*which, case["settings"])
    scale = max(abs(number) for number in before[0]["weights"])
    # All ranks have equal parameters before, and after as well if `alike` holds.
    gaps = [abs(a - b) for found in after for a, b in _pairs(before[0], found)]
    alike = all(found["weights"] == after[0]["weights"] for found in after)
    counted = {found["steps"] for found in (*before, *after)} == {before[0]["steps"]}
    counted = counted and sum(b["samples"] for b in before) == sum(a["samples"] for a in after)
    applied = {knob: readings.get(knob) for knob in case["settings"]}
    largest = max(gaps) / scale
    return {
        "applied": applied,
        "is_applied": applied == case["settings"],
        "largest_difference": largest,
        "ranks_alike": alike,
        "steps": before[0]["steps"],
        "samples": [found["samples"] for found in before],
        "counts_alike": counted,
        "ok": largest <= TOLERANCE and alike and counted and applied == case["settings"],
    }


def _pairs(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[float, float]]:
    return list(zip(before["weights"], after["weights"], strict=True))


def _train(script: str, ranks: int, settings: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what every rank wrote, and what was read back on the first."""
    changes = tuple(
        Change(
            knob=knob,
            value=value,
            spelling=_delivery(script, knob),
        )
        for knob, value in settings.items()
    )
    folder = Path(tempfile.mkdtemp(prefix="distributed-"))
    try:
        for name in ("record.py", f"{script}.py"):
            shutil.copy(SCRIPTS / name, folder)
        launch = build_launch(
            script=str(folder / f"{script}.py"),
            args=(),
            python=sys.executable,
            cwd=str(folder),
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "SPAWNED": str(ranks)},
            changes=changes,
            launcher="" if script == "spawns" else several(ranks),
            measure=False,
            protect=False,
        )
        code = run_plain(launch, folder / "plan")
        if code:
            message = f"{script} with {ranks} ranks and {_text(settings)} ended with code {code}"
            raise RuntimeError(message)
        count = settings.get("processes", ranks)
        found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)]
        status = folder / "plan" / "status.json"
        readings = json.loads(status.read_text()) if status.exists() else []
        return found, {r["knob"]: r["found"] for r in readings}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delivery(script: str, knob: str) -> Spelling:
    """Return the delivery by the script's framework if there is one, else the last of the knob's."""
    ways, target = builtin()[knob].spellings, _TARGETS.get(script, LOADER)
    return next((w for w in ways if isinstance(w, Keyword) and w.target == target), ways[-1])


def _text(settings: dict[str, Any]) -> str:
    return " ".join(f"{knob}={value}" for knob, value in settings.items()) or "unchanged"
