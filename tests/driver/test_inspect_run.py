"""A look at a real script: one process, its facts, and nothing left of it."""

from pathlib import Path

import pytest

from autotune.driver.inspect_run import look
from autotune.errors import ScriptError
from autotune.inspection.command_line import read_command
from autotune.report.text.inspect_text import knob_rows
from autotune.store.paths import home

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]

TRAIN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
open("written.txt", "w").write("x")
if args.fail:
    raise ValueError("no dataset is here")
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(512, 8), torch.randn(512, 1)), args.batch_size, shuffle=True)
for epoch in range(1000):
    for x, y in data:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(TRAIN)
    return project / "train.py"


def left(script: Path) -> list[str]:
    return [
        *(path.name for path in script.parent.iterdir()),
        *(p.name for p in (home() / "studies").iterdir()),
    ]


def test_options_of_another_sub_command_are_no_way_for_a_knob(script: Path) -> None:
    script.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\ncommands = parser.add_subparsers()\n"
        "commands.add_parser('train').add_argument('--epochs', type=int)\n"
        "commands.add_parser('predict').add_argument('--num-workers', type=int)\n"
    )
    ways: dict[str, str] = {}
    for verb in ("train", "predict"):
        found = look(read_command(["train.py", verb]), limit_s=60.0, run=False)
        ways[verb] = {row["knob"]: row["how"] for row in knob_rows(found.facts)}["num_workers"]
    assert ways["train"] == "keyword torch.utils.data.DataLoader:num_workers"
    assert ways["predict"] == "flag --num-workers"


def test_a_short_run_shows_loader_model_optimizer_and_own_values(script: Path) -> None:
    found = look(read_command(["train.py", "--batch-size", "32"]), limit_s=120.0)
    assert found.problem is None
    run = found.facts.run
    assert run is not None
    assert run.loader is not None
    assert run.model is not None
    assert run.optimizer is not None
    assert (run.loader.batch_size, run.model.name, run.optimizer.name) == (32, "Sequential", "Adam")
    assert run.reduction == "mean"
    rows = {row["knob"]: row for row in knob_rows(found.facts)}
    assert (rows["batch_size"]["value"], rows["batch_size"]["how"]) == (32, "flag --batch-size")
    assert rows["channels_last"]["why"].startswith("The model has no 4-D parameters")
    assert found.space is not None
    assert left(script) == ["train.py"]


RANKED = """
import os
import torch
import torch.distributed as dist
from torch import nn
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
assert (dist.get_rank(), dist.get_world_size()) == (rank, world) == (0, 1)
assert int(os.environ["LOCAL_RANK"]) == 0
assert dist.is_torchelastic_launched() and 0 < int(os.environ["MASTER_PORT"]) < 2**16
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_of_torchrun_with_one_process_finds_its_group(script: Path) -> None:
    script.write_text(RANKED)
    found = look(read_command(["torchrun", "--nproc-per-node=1", "train.py"]), limit_s=120.0)
    assert found.problem is None
    assert found.facts.run is not None
    assert found.facts.run.model is not None


def test_a_script_that_fails_first_is_reported_with_its_own_words(script: Path) -> None:
    found = look(read_command(["train.py", "--fail"]), limit_s=120.0)
    assert isinstance(found.problem, ScriptError)
    assert "no dataset is here" in found.problem.message
    assert found.facts.run is None
    assert [flag.names[0] for flag in found.facts.script.flags] == ["--batch-size", "--fail"]
    assert left(script) == ["train.py"]
