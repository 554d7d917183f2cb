"""Trains under one set of settings after the other in the same processes, each beside an unchanged training.

``python parallel_scenarios.py '[[["--accumulate", "4"], {"ddp_no_sync": 4}], ...]'``; starting processes and
importing PyTorch would take most of the time otherwise.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from parallel_script import PARSER, tell_all, train

from autotune.trial.hooks.distributed.settings import Distributed
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.imports import AfterImport
from autotune.trial.runtime.state import RuntimeState
from autotune.trial.runtime.undo import Undo

FAULTS = Path(f"faults.{os.environ['RANK']}.log")


def under(argv, settings, *, silent=False):
    faults, undo = Faults(FAULTS), Undo()
    state = RuntimeState(faults, __file__)
    state.ranks = dist.get_world_size()
    distributed = Distributed(state, undo, AfterImport(), watches=not settings)
    distributed.parallel.is_silent = silent
    distributed.install(torch)
    for name, value in settings.items():
        distributed.set(name, value)

    def look():
        facts = distributed.facts()
        return {
            "observed": {name: distributed.observed(name) for name in settings or OWN},
            "facts": None if facts is None else dataclasses.asdict(facts),
            "refusals": state.refusals,
            "faults": sorted(faults.off),
        }

    try:
        return train(PARSER.parse_args(argv), look)
    finally:
        undo.undo_all()


OWN = (
    *("ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_gradient_as_bucket_view", "ddp_static_graph"),
    *("ddp_comm_hook", "ddp_powersgd_rank", "ddp_no_sync", "cpu_affinity"),
    *("fsdp_reshard_after_forward", "fsdp_prefetch", "fsdp_param_dtype", "fsdp_cpu_offload"),
    *("fsdp_shard_ranks", "ddp_shard_optimizer"),
)


def main():
    dist.init_process_group("gloo")
    found, plain = [], {}
    for argv, settings in json.loads(sys.argv[1]):
        if settings == "silent":
            found.append(under(argv, {}, silent=True))
            continue
        if tuple(argv) not in plain:
            plain[tuple(argv)] = train(PARSER.parse_args(argv))
        found.append({"plain": plain[tuple(argv)], "changed": under(argv, settings)})
    tell_all(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
