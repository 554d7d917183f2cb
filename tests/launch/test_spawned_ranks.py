"""Ranks that a script starts by itself: each enters our part, rank 0 measures, and nobody is left."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.launch.direct_run import run_plain
from autotune.model.change import Change, Patch
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, FailureKind
from tests.launch.test_ranks import launch, outcome

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.model.config import Value
    from autotune.model.trial import Launch

pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(300)]

TRAIN = """
import os, signal, socket, subprocess, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(rank, count, port, steps):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=count)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 24), torch.randn(512, 1))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, count, rank))  # built here
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == 8 and rank == 1:
                AT_EIGHT
            if done == steps:
                break
    with open(f"rank{rank}.txt", "w") as file:
        print(done, len(x), loader.num_workers, "AUTOTUNE_RANK" in os.environ, file=file)
    dist.destroy_process_group()

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
"""
BY_SPAWN = """
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(train, args=(2, free_port(), STEPS), nprocs=2)
    print("spawned", file=open("after.txt", "w"))
"""
BY_ITSELF = """
if __name__ == "__main__":
    # As Lightning's `_SubprocessScriptLauncher` does.
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if "LOCAL_RANK" not in os.environ:
        os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2", PORT=str(free_port()))
        env = {**os.environ, "LOCAL_RANK": "1"}
        subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]], env=env)
    train(rank, 2, int(os.environ["PORT"]), STEPS)
"""
WAYS = pytest.mark.parametrize("way", [BY_SPAWN, BY_ITSELF], ids=["mp_spawn", "starts_itself"])


def written(script: Path, way: str, at_eight: str = "pass", steps: int = 10**6) -> Path:
    text = (TRAIN + way).replace("AT_EIGHT", at_eight).replace("STEPS", str(steps))
    script.write_text(text)
    return script


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    return path


def alone(script: Path, *, measure: bool = True) -> Launch:
    """As started without a launcher."""
    started = launch(script, measure=measure)
    kept = {name: value for name, value in started.env.items() if name in {"PATH", "HOME", "LANG"}}
    return replace(started, ranks=1, env=kept)


@WAYS
def test_samples_are_those_of_all_ranks(script: Path, tmp_path: Path, way: str) -> None:
    found = outcome(tmp_path, alone(written(script, way)))
    assert isinstance(found, Measurement), found
    assert found.effective_batch == 32
    assert [figures.rank for figures in found.ranks] == [0, 1]
    assert {figures.samples_per_step for figures in found.ranks} == {16.0}


@WAYS
@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("raise ValueError('no such thing')", FailureKind.CRASH_EXIT, "no such thing (rank 1"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            FailureKind.CRASH_SIGNAL,
            "rank 1 of 2 was ended by SIGSEGV",
        ),
    ],
)
def test_the_rank_that_fails_is_named(
    script: Path, tmp_path: Path, way: str, code: str, kind: FailureKind, message: str
) -> None:
    found = outcome(tmp_path, alone(written(script, way, code)))
    assert isinstance(found, Failure), found
    assert (found.kind, message in found.message) == (kind, True), found.message


@WAYS
def test_apply_runs_every_rank_to_its_end(script: Path, tmp_path: Path, way: str) -> None:
    written(script, way, steps=40)
    assert run_plain(alone(script, measure=False), tmp_path / "plan") == 0
    for rank in (0, 1):
        assert (script.parent / f"rank{rank}.txt").read_text() == "40 16 0 False\n"
    assert (script.parent / "after.txt").exists() == (way == BY_SPAWN)


@WAYS
@pytest.mark.parametrize(
    ("knobs", "code"),
    [({"ddp_bucket_cap_mb": 1, "cpu_affinity": "block"}, 0), ({"fsdp_prefetch": 2}, 6)],
    ids=["applied", "not reached"],
)
def test_apply_sets_knobs_on_the_ranks_and_judges_by_them(
    script: Path, tmp_path: Path, way: str, knobs: dict[str, Value], code: int
) -> None:
    changes = tuple(Change(knob=knob, value=value, spelling=Patch()) for knob, value in knobs.items())
    started = replace(alone(written(script, way, steps=60), measure=False), changes=changes)
    if way == BY_ITSELF:
        changes = tuple(change for change in changes if change.knob != "cpu_affinity")
        started = replace(started, changes=changes)
    assert run_plain(started, tmp_path / "plan") == code
    if code == 0:
        readings = json.loads((tmp_path / "plan" / "status.json").read_text())
        assert {r["status"] for r in readings if r["knob"] in {c.knob for c in changes}} == {"applied"}


LIGHTNING = """
import torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(24, 1)
    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

if __name__ == "__main__":
    data = TensorDataset(torch.randn(4096, 24), torch.randn(4096, 1))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=STRATEGY, max_epochs=1000, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size=16))
"""


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs the package lightning")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_lightning_spawns_its_ranks_by_itself(script: Path, tmp_path: Path, strategy: str) -> None:
    script.write_text(LIGHTNING.replace("STRATEGY", repr(strategy)))
    found = outcome(tmp_path, alone(script))
    assert isinstance(found, Measurement), found
    assert found.effective_batch == 32
    assert [figures.gradient_bytes for figures in found.ranks] == [100, 100]
