"""`autotune scale` from outside: the real command on a real script of one and two gloo processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.launch.test_ranks import TRAIN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(500)]


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


def test_one_and_two_processes_are_measured_with_their_samples(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("scale", "--rounds", "2", "--budget", "5m", "--price", "3", "--json", "--quiet")
    done = run(tmp_path, *words, "--", "torchrun", "--nproc-per-node", "2", "train.py", "--batch-size", "8")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    first, second = reported["points"]
    assert (first["effective_batch"], second["effective_batch"]) == (8, 16)
    assert first["communication_frac"] is None
    assert 0.0 <= second["communication_frac"] <= 1.0
    for point in reported["points"]:
        rate = point["throughput"]["value"]
        assert point["cost_per_million_samples"]["value"] == pytest.approx(
            3 * point["processes"] / 3600 / rate * 1e6
        )
    assert reported["knee"] in (1, 2)
    assert json.loads(run(tmp_path, "show", "--json").stdout)["points"] == reported["points"]
    assert "scaling to 2 processes" in run(tmp_path, "list").stdout
    assert run(tmp_path, "report", "--out", "page.html").returncode == 0
    assert 'id="plot"' in (tmp_path / "page.html").read_text()
