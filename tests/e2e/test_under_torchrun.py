"""A best.yaml under the launchers of two processes: each rank trains with the values, a failure counts."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from study_fakes import facts, good_answer, spec, study

from autotune.export.best_config import write_best
from autotune.inspection.host import host_facts
from autotune.model.change import Change, Flag, Keyword, Patch
from autotune.model.config import Config, Value
from autotune.model.distributed_launch import ACCELERATE, DEEPSPEED, TORCH_LAUNCH, launcher_text, several
from autotune.model.facts import ScriptFacts

pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(300)]

TRAIN = """
import argparse, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--fail-in", type=int, default=-1)
parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 24), torch.randn(256, 1))
loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))  # built here
inner = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))
seen = set()
inner[0].register_forward_hook(lambda module, given, out: seen.add((str(out.dtype), len(out))))
model = DDP(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
steps = 0
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        steps += 1
        if args.fail_in == rank and steps == 8:
            sys.exit(9)
total = torch.tensor([inner[0].weight.detach().double().sum()])
dist.all_reduce(total)
alike = bool(total / 2 == inner[0].weight.detach().double().sum())
with open(f"rank{rank}.txt", "w") as file:
    print(dist.get_world_size(), steps, sorted(seen), loader.num_workers, alike, file=file)
dist.destroy_process_group()
"""


def change(knob: str, value: Value, line: int) -> Change:
    if knob == "batch_size":
        return Change(knob=knob, value=value, spelling=Flag(("--batch-size",)), delivered=str(value))
    if knob == "num_workers":
        target = "torch.utils.data.DataLoader"
        return Change(knob=knob, value=value, spelling=Keyword(target, knob), site=f"train.py:{line}")
    return Change(knob=knob, value=value, spelling=Patch())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script of several processes beside a best.yaml that was found with one."""
    return written(tmp_path)


def written(tmp_path: Path, launcher: str = "") -> Path:
    """The script, and a best.yaml of a search under this launcher."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    line = next(n for n, text in enumerate(TRAIN.splitlines(), 1) if "# built here" in text)
    known = replace(
        facts(),
        host=host_facts(),
        script=ScriptFacts(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest()),
    )
    answer = good_answer()
    tuned = Config({"batch_size": 8, "num_workers": 1, "precision": "bf16"})
    assert answer.best is not None
    answer = replace(answer, best=replace(answer.best, config=tuned))
    given = spec(script=str(path), cwd=str(tmp_path), args=(), launcher=launcher, python=sys.executable)
    done = study(spec=given, facts=known)
    write_best(
        tmp_path / "best.yaml",
        done,
        answer,
        lambda config: tuple(change(knob, value, line) for knob, value in config.items()),
    )
    return path


def applied(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "autotune", "apply", "best.yaml", "--", sys.executable, "train.py", *args]
    return subprocess.run(words, cwd=script.parent, capture_output=True, text=True, check=False)


def test_every_rank_trains_with_the_values(script: Path) -> None:
    done = applied(script)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        # 256 samples over two ranks in batches of 8, four times; a hook inside the model saw their format.
        message = (script.parent / f"rank{rank}.txt").read_text().strip()
        assert message == "2 64 [('torch.bfloat16', 8)] 1 True"


def test_one_rank_that_fails_ends_the_run_with_a_code_that_says_so(script: Path) -> None:
    done = applied(script, "--fail-in", "1")
    assert done.returncode != 0
    assert "exitcode  : 9" in done.stderr
    assert not list(script.parent.glob("rank*.txt"))


LAUNCHERS = pytest.mark.parametrize(
    "launcher",
    [several(2), *(launcher_text(name, 2) for name in (TORCH_LAUNCH, ACCELERATE, DEEPSPEED))],
    ids=["torchrun", "torch.distributed.launch", "accelerate", "deepspeed"],
)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {"AUTOTUNE_HOME": str(folder / "home"), "AUTOTUNE_TRANSFER": "off"}
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )


@LAUNCHERS
def test_apply_starts_the_processes_of_the_search_by_itself(tmp_path: Path, launcher: str) -> None:
    written(tmp_path, launcher)
    done = run(tmp_path, "apply", "best.yaml")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        message = (tmp_path / f"rank{rank}.txt").read_text().strip()
        assert message == "2 64 [('torch.bfloat16', 8)] 1 True"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_verify_measures_all_processes_of_the_search(tmp_path: Path) -> None:
    path = written(tmp_path, several(2))
    path.write_text(TRAIN.replace("range(4)", "range(100000)"))
    done = run(tmp_path, "verify", "best.yaml", "--budget", "4m", "--pairs", "3", "--json", "--quiet")
    shown = json.loads(run(tmp_path, "show", "--json").stdout)
    measured = [t["outcome"] for t in shown["trials"] if (t.get("outcome") or {}).get("effective_batch")]
    assert measured, done.stderr
    assert {m["effective_batch"] for m in measured} <= {16.0, 32.0}
    assert {len(m["ranks"]) for m in measured} == {2}
