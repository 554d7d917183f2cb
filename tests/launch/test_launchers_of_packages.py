"""Real scripts under the launchers of packages that are optional: two ranks over gloo."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

import pytest

from autotune.inspection.command_line import read_command
from autotune.model.measurement import Measurement
from autotune.space.launch_command import build_launch
from tests.launch.test_ranks import outcome

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(400)]

ACCELERATE = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2, accelerator.num_processes
assert accelerator.mixed_precision == MIXED, accelerator.mixed_precision
data = TensorDataset(torch.randn(4096, 24), torch.randn(4096, 1))
model = nn.Linear(24, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))
for _ in range(10000):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
"""
TRAINER = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(24, 1)
    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}

data = [{"x": torch.randn(24), "labels": torch.randn(1)} for _ in range(2048)]
options = TrainingArguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=16, max_steps=100000, report_to=[],
    save_strategy="no", logging_steps=10**6, disable_tqdm=True,
)
Trainer(model=Model(), args=options, train_dataset=data).train()
"""
DEEPSPEED = """
import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
assert args.local_rank == int(os.environ["LOCAL_RANK"]), args.local_rank
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10**6):
    optimizer.zero_grad()
    model(torch.randn(16, 24)).square().mean().backward()
    optimizer.step()
"""
YAML = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs the package {package}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def measured(tmp_path: Path, words: list[str]) -> Measurement:
    command = read_command(words, python=sys.executable)
    kept = {"PATH", "HOME", "LANG"}
    started = build_launch(
        script=command.script,
        args=command.args,
        python=command.python,
        cwd=str(tmp_path / "project"),
        env={name: value for name, value in os.environ.items() if name in kept},
        changes=(),
        launcher=command.launcher,
    )
    found = outcome(tmp_path, started)
    assert isinstance(found, Measurement), found
    assert found.effective_batch == 32
    assert {figures.samples_per_step for figures in found.ranks} == {16.0}
    return found


@needs("accelerate")
def test_accelerate_launch_by_options(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(ACCELERATE.replace("MIXED", "'no'"))
    measured(tmp_path, ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "train.py"])


@needs("accelerate")
def test_accelerate_launch_by_its_file(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(ACCELERATE.replace("MIXED", "'bf16'"))
    (project / "two.yaml").write_text(YAML)
    measured(tmp_path, ["accelerate", "launch", "--config_file", "two.yaml", "train.py"])


@needs("transformers")
def test_the_trainer_of_transformers_under_torchrun(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(TRAINER)
    measured(tmp_path, ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"])


@pytest.mark.parametrize(
    "words",
    [["deepspeed", "--num_gpus", "2"], ["python", "-m", "torch.distributed.launch", "--nproc_per_node=2"]],
    ids=["deepspeed", "torch.distributed.launch"],
)
def test_a_launcher_that_gives_the_local_rank_as_an_option(
    project: Path, tmp_path: Path, words: list[str]
) -> None:
    text = DEEPSPEED if words[0] == "deepspeed" else DEEPSPEED.replace('"--local_rank"', '"--local-rank"')
    (project / "train.py").write_text(text)
    measured(tmp_path, [*words, "train.py"])
