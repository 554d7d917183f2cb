"""Failures of one rank of 2 and 4: classified, the rank named, no survivor."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.launch.guard import process_tree
from autotune.launch.process import LocalRunner
from autotune.model.config import Config
from autotune.model.distributed_launch import several
from autotune.model.trial import Assignment, Failure, Fidelity, Segment
from autotune.space.launch_command import build_launch

REPEATS = 25
TRAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
BEFORE
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 24), torch.randn(512, 1))
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
model = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
steps = 0
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if steps == 8 and rank == FAILING:
            pass
            PLANTED
        loss.backward()
        optimizer.step()
        steps += 1
"""
PLANTED = {
    "kill": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "oom_host",
        "rank {rank} of {ranks} was ended by SIGKILL",
    ),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "crash_signal", "rank {rank} of {ranks}"),
    "hang": ("time.sleep(600)", "timeout_progress", "no step for"),
    "oom": ("raise MemoryError()", "oom_host", "rank {rank} of {ranks}"),
    "nan": ("loss = loss * float('nan')", "diverged", "first in rank {rank}"),
    "exception": ("raise ValueError('no such thing')", "crash_exit", "no such thing (rank {rank}"),
}
"""Group -> what the failing rank does at step 8, the kind of the failure, what its message contains."""
BEFORE = {
    "port taken": ('os.environ["MASTER_PORT"] = "{port}"', "infra_lost", "EADDRINUSE"),
    "count does not divide": (
        'assert 9 % int(os.environ["WORLD_SIZE"]) == 0, "a batch of 9 cannot be divided"',
        "crash_exit",
        "a batch of 9 cannot be divided",
    ),
}
"""The same for what fails on every rank before there is a process group."""
FIDELITY = Fidelity(
    min_window_s=30.0, max_window_s=60.0, min_steps=10_000, target_width=0.01, setup_s=300.0, deadline_s=420.0
)
"""Setup is long because imports of four ranks take more than a minute beside other work on two CPUs."""


def cases() -> list[dict[str, Any]]:
    """Return every case; all groups once before any is repeated."""
    found: list[dict[str, Any]] = []
    for repeat in range(REPEATS):
        for ranks in (2, 4):
            planted = [(group, rank) for group in PLANTED for rank in range(ranks)]
            for group, rank in [*planted, *((group, 0) for group in BEFORE)]:
                key = f"{group} rank {rank} of {ranks} #{repeat}"
                found.append({"key": key, "group": group, "rank": rank, "ranks": ranks})
    return found


def run(case: dict[str, Any], _plain: object) -> dict[str, Any]:
    """Run one trial that fails; return how it was classified and what is left of it."""
    group, taken = case["group"], None
    code, kind, message = PLANTED.get(group) or BEFORE[group]
    if group == "port taken":
        taken = socket.create_server(("127.0.0.1", 0))
        code = code.format(port=taken.getsockname()[1])
    text = TRAIN.replace("FAILING", str(case["rank"]))
    planted, before = (code, "") if group in PLANTED else ("", code)
    folder = Path(tempfile.mkdtemp(prefix="failures-"))
    script = folder / "project" / "train.py"
    script.parent.mkdir()
    script.write_text(text.replace("PLANTED", planted).replace("BEFORE", before))
    try:
        launch = build_launch(
            script=str(script),
            args=(),
            python=sys.executable,
            cwd=str(script.parent),
            env={name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
            changes=(),
            launcher=several(case["ranks"]),
            measure=True,
            protect=True,
        )
        assignment = Assignment(
            uid=f"t0000-a1-{os.urandom(3).hex()}",
            study_id="failures",
            attempt=1,
            launch=launch,
            segments=(Segment(trial=0, config=Config(), fidelity=FIDELITY),),
        )
        runner = LocalRunner(study_dir=folder / "study", progress_floor_s=10.0, space_floor_bytes=1)
        (ended,) = runner.run(assignment)
        left = process_tree.marked(assignment.uid)
    finally:
        if taken is not None:
            taken.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome = ended.outcome
    is_failure = isinstance(outcome, Failure)
    found = {
        "kind": outcome.kind.name.lower() if is_failure else type(outcome).__name__,
        "message": outcome.message[:300] if is_failure else "",
        "survivors": len(left),
    }
    wanted = message.format(rank=case["rank"], ranks=case["ranks"])
    return {**found, "ok": found["kind"] == kind and wanted in found["message"] and not left}
