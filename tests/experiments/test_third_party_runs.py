"""The stopwatch and the course of one candidate, on a small script in this very environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "third_party"
sys.path.insert(0, str(HERE))

import third_party_envs as envs  # noqa: E402 (needs the path set above)
import third_party_judge as judge  # noqa: E402 (needs the path set above)
import third_party_runs as runs  # noqa: E402 (needs the path set above)

pytestmark = pytest.mark.torch

SCRIPT = """
    import importlib.util, sys, time
    assert importlib.util.find_spec("torch") is not None, "as transformers asks before it imports it"
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(200, 4), torch.randn(200, 1))
    train, valid = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=50)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    first, second = (torch.optim.Adam(model.parameters(), lr=1e-3) for _ in range(2))
    for epoch in range(int(sys.argv[1])):
        for x, y in train:
            first.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            first.step()
            second.step()
            time.sleep(float(sys.argv[2]))
        with torch.no_grad():
            for x, y in valid:
                model(x)
                time.sleep(float(sys.argv[2]))
    open("done.txt", "w").write("done")
"""


def written(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(dedent(SCRIPT))
    return path


def test_the_stopwatch_counts_steps_samples_and_evaluation(tmp_path: Path) -> None:
    script = written(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(runs.STOPWATCH), "STOPWATCH_FILE": str(tmp_path / "steps")}
    env["STOPWATCH_FORMATS"] = "1"
    words = [sys.executable, str(script), "2", "0.002"]
    subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=100)
    found = runs._records(tmp_path / "steps")
    anchor = [row for row in found if row[1] == 0]
    assert len(found) == 2 * len(anchor) == 2 * 2 * 13
    assert [row[2] for row in anchor] == 2 * [*12 * [16], 8]
    aside_s = [row[3] / 1e9 for row in anchor]
    # One evaluation between two epochs, before the first step of the second: four batches with a pause each.
    assert [value > 0 for value in aside_s] == [number == 13 for number in range(26)]
    assert aside_s[13] > 3 * 0.002
    assert found == sorted(found)
    look = runs._look(tmp_path / "steps")
    assert look["threads"] >= 1
    assert look["fused"] == [False]
    assert set(look["formats"]) == {"float32"}


def _words(candidate: Any, rooms: Any) -> list[str]:
    return [sys.executable, str(rooms.place(candidate.name) / "train.py"), *candidate.args]


class Here(envs.Rooms):
    """Rooms whose only environment is the one that the tests run in."""

    def env(self, name: str) -> Path:
        return Path(sys.prefix)

    def python(self, name: str) -> Path:
        return Path(sys.executable)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    candidate = envs.Candidate(
        name="made", requires=("made==1",), entry={"file": "train.py"}, args=("4000", "0.001")
    )
    rooms = Here(tmp_path)
    given = tmp_path / "given" / "made"
    given.mkdir(parents=True)
    written(given)
    monkeypatch.setattr(envs, "GIVEN", given.parent)
    monkeypatch.setattr(envs, "words", _words)
    short = {"min_window_s": 0.3, "max_window_s": 1.0, "min_steps": 10, "target_width": 0.5}
    for name in ("BASELINE", "KNOB"):
        monkeypatch.setattr(runs, name, runs.Fidelity(**short, setup_s=90.0, deadline_s=100.0))
    monkeypatch.setattr(runs, "BARE_STEPS_S", 0.3)
    assert envs.lay_out(candidate, rooms) == ""
    yield runs.Runs(candidate, rooms)
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_bare_run_is_ended_after_some_steps(one: Any) -> None:
    bare = one.bare()
    assert bare["ok"], bare
    assert (bare["ended"], bare["optimizers"], bare["samples_per_step"]) == ("stopped", 2, 16)
    assert bare["steps"] > 10


def test_the_product_beside_the_experiment_is_queried(one: Any) -> None:
    reported = one.inspect()
    assert reported["ok"], reported
    assert reported["knobs"]["threads"][0] == "searched"


def test_a_baseline_agrees_with_the_stopwatch_and_knobs_end_in_words(one: Any) -> None:
    baseline = one.baseline()
    assert baseline["ok"], baseline
    assert (baseline["clock"]["steps_off"], baseline["clock"]["samples_off"]) == (0, 0)
    assert baseline["state"]["per_step"] == 16
    fused = one.knob("fused_optimizer")
    assert fused["outcome"] == "applied", fused
    layout = one.knob("channels_last")
    assert layout["outcome"] == "refused"
    assert layout["reason"]
    assert not [name for line in (baseline, fused) for name in line.get("wrote", ())]
    json.dumps(judge.scrubbed_data([baseline, fused, layout]))


def test_a_script_that_takes_no_step_is_named_so(one: Any) -> None:
    (one.place / "train.py").write_text("import torch\n")
    baseline = one.baseline()
    assert (baseline["ok"], baseline["outcome"]) == (False, "failed: no_metric")
