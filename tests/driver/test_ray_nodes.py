"""A search on a real Ray of unlike nodes: pairs on one, equal nodes verified first, a slow one refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_machines import ENV, Machines

from autotune.store.fold import fold
from autotune.store.journal import Journal

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SEARCH = ROOT / "experiments" / "service" / "fake_autotune.py"
"""The real command; its trials run in real actors and take time, and only their figures are made up."""


def search(folder: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("import torch\n")
    own = {
        "AUTOTUNE_HOME": str(folder / "home"),
        "AUTOTUNE_TRANSFER": "off",
        "PYTHONPATH": str(ROOT),
        "FAKE_DRIVER": "ray",
        "FAKE_RUN_S": "0.4",
        "FAKE_PATIENCE_S": "90",
    }
    words = ["search", "--address", address, "--budget", "4h", "--sampler", "random", *options]
    return subprocess.run(
        [sys.executable, str(SEARCH), *words, "--out", str(folder / "best.yaml"), "--", "python", "train.py"],
        cwd=folder,
        env={**os.environ, **ENV, **own},
        capture_output=True,
        text=True,
        timeout=240,
    )


def trials(folder: Path) -> list[Any]:
    (path,) = (folder / "home" / "studies").glob("*/journal.db")
    journal = Journal.read(path)
    study = fold(journal.entries())
    journal.close()
    return [(t.stage.value, t.node, t.reason) for t in study.trials]


def test_screening_uses_equal_nodes_that_are_as_fast_and_pairs_use_one(tmp_path: Path) -> None:
    machines = Machines(
        tmp_path, [{"num_cpus": 2}, {"num_cpus": 2}, {"num_cpus": 2, "slow": 1}, {"num_cpus": 1}]
    )
    try:
        done = search(tmp_path, machines.address, "--concurrency", "6", "--trials", "40")
    finally:
        machines.close()
    seen = trials(tmp_path)
    assert done.returncode in (0, 1, 8), done.stderr
    homes = {node for stage, node, _ in seen if stage in ("baseline", "confirm", "drift", "ablate")}
    assert len(homes) == 1, seen
    assert any(stage == "confirm" for stage, _, _ in seen)
    references = [node for stage, node, _ in seen if stage == "reference"]
    assert len(references) == len(set(references)) == 2, "each of the two equal nodes runs the script once"
    assert "times as fast as on" in done.stderr, "the slow node is refused"
    screened = {node for stage, node, _ in seen if stage in ("initial", "refine")}
    assert len(screened - homes) == 1, "the equal node that is as fast"
    assert screened - homes < set(references)
    assert "1 other node is of other hardware and not used" in done.stderr
    found = json.loads(
        subprocess.run(
            [sys.executable, "-m", "autotune", "show", "--json"],
            env={**os.environ, "AUTOTUNE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert {trial["node"] for trial in found["trials"]} == homes | set(references)


def test_a_type_of_accelerator_that_no_node_has_is_named(tmp_path: Path) -> None:
    machines = Machines(tmp_path, [{"num_cpus": 1}])
    try:
        done = search(tmp_path, machines.address, "--accelerator-type", "H100", "--trials", "4")
    finally:
        machines.close()
    assert done.returncode == 6, done.stderr
    assert "no node of the cluster has accelerators of type H100" in done.stderr
