"""Every way of starting a script, end to end: another interpreter, a module, a call from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment

from autotune.driver.inspect_run import look
from autotune.inspection.command_line import read_command
from autotune.report.text.inspect_text import knob_rows

pytestmark = [pytest.mark.mlflow, pytest.mark.timeout(400)]

SHORT = ("--budget", "4m", "--driver", "inline", "--trials", "3")

OURS_ARE_AWAY = """
import importlib.util
found = [n for n in ("ray", "mlflow", "pydantic", "optuna", "typer", "yaml") if importlib.util.find_spec(n)]
assert not found, found
"""

WITHOUT_TORCH = (
    OURS_ARE_AWAY
    + """
import os, sys, time
from autotune import sdk
open("seen.txt", "w").write(sys.prefix)
for step in range(4000):
    time.sleep(0.002)
    sdk.step(samples=4, loss=1.0 / (step + 1))
"""
)

TRAIN = """
import argparse, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from {helper} import WIDTH
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--out-dir", default="")
args = parser.parse_args()
assert __name__ == "__main__"
print("started", sys.argv[0], sys.path[0], sys.prefix, args.out_dir)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(512, 8), torch.randn(512, 1)), batch_size=args.batch_size)
step = 0
while step < args.steps:
    for x, y in data:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
if args.out_dir:
    torch.save(model.state_dict(), args.out_dir + "/model.pt")
print("trained")
"""


@pytest.fixture
def package(place: Any) -> Path:
    """A package whose module trains, beside a script that does the same."""
    folder = place.folder / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text("WIDTH = 16\n")
    (folder / "train.py").write_text(TRAIN.format(helper=".helper"))
    (place.folder / "train.py").write_text(TRAIN.format(helper="package.helper"))
    return folder


def printed(place: Any) -> list[str]:
    """First lines of what the trials' scripts printed."""
    logs = sorted(place.home.glob("studies/*/trials/*/stdout.log"))
    return [log.read_text().splitlines()[0] for log in logs]


@pytest.mark.slow
def test_a_script_of_a_bare_environment_is_searched_and_sees_none_of_our_packages(place: Any) -> None:
    python = environment(place.folder / "env")
    (place.folder / "train.py").write_text(WITHOUT_TORCH)
    ended = place.run("search", *SHORT, "--knob", "threads", "--python", str(python), "--script", "train.py")
    assert ended.has_no_gain, ended
    assert f"train.py is run by {python} (Python 3." in ended.err
    assert place.show()["baseline"]["throughput"]["value"] > 0
    assert not (place.folder / "seen.txt").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_script_of_an_environment_with_torch_alone_is_searched_and_applied(
    place: Any, package: Path
) -> None:
    python = environment(place.folder / "env", torch=True)
    text = (place.folder / "train.py").read_text()
    (place.folder / "train.py").write_text(OURS_ARE_AWAY + text)
    words = ("--knob", "fused_optimizer", "--", str(python), "-u", "train.py")
    ended = place.run("search", *SHORT, *words)
    assert ended.has_no_gain, ended
    assert ended.best["study"]["python"] == str(python)
    assert ended.best["study"]["options"] == ["-u"]
    assert all(line.split()[3] == str(place.folder / "env") for line in printed(place))
    applied = place.run("apply", "best.yaml", "--", "env/bin/python", "train.py", "--steps", "50")
    assert applied.exit == 0, applied
    assert applied.out.endswith("trained\n")


@pytest.mark.torch
def test_a_module_is_searched_and_applied_under_its_own_name(place: Any, package: Path) -> None:
    words = ("--knob", "fused_optimizer", "--output-arg=--out-dir")
    ended = place.run("search", *SHORT, *words, "--", sys.executable, "-m", "package.train")
    assert ended.has_no_gain, ended
    assert ended.best["study"]["module"] == "package.train"
    for line in printed(place):
        _started, argv0, path0, _prefix, out_dir = line.split()
        assert argv0 == str(package / "train.py")
        assert path0 == str(place.folder)
        assert Path(out_dir).name == "output"
        assert not Path(out_dir).exists()
    applied = place.run("apply", "best.yaml", "--", sys.executable, "-m", "package.train", "--steps", "50")
    assert applied.exit == 0, applied
    assert applied.out.splitlines()[0].split()[1:3] == [str(package / "train.py"), str(place.folder)]
    resumed = place.run("apply", "best.yaml")
    assert resumed.out.endswith("trained\n"), resumed


def test_static_facts_are_those_of_the_modules_file(package: Path) -> None:
    found = look(read_command([str(package / "train.py")]), limit_s=60.0, run=False)
    rows = {row["knob"]: row for row in knob_rows(found.facts)}
    assert rows["batch_size"]["how"].startswith("flag --batch-size")


CALL = """
import asyncio, json, threading
import autotune

found = []

def search():
    found.append(autotune.tune("train.py", budget="3m", knob=["fused_optimizer"], trials=3))

async def notebook():
    thread = threading.Thread(target=search)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.1)
    try:
        autotune.tune("trian.py", budget="3m")
    except autotune.AutotuneError as error:
        print(json.dumps(["error", type(error).__name__]))

asyncio.run(notebook())
(one,) = found
reported = [one.reason, one.path.name, one.path.is_file(), one.to_dict()["schema"], len(one.study.trials)]
print(json.dumps(["found", *reported]))
"""


@pytest.mark.torch
def test_a_search_from_python_is_silent_and_gives_its_result_back(place: Any, package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        cwd=place.folder,
        env={**place.environ, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=330,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    error, result = [json.loads(line) for line in done.stdout.splitlines()]
    assert error == ["error", "UsageError"]
    # Three trials beside other processes leave it open.
    assert result[1] in ("nothing_faster", "inconclusive")
    assert [result[0], *result[2:-1]] == ["found", "best.yaml", True, "autotune.result/v1"]
    assert 1 <= result[-1] <= 3
