"""One training on several Ray nodes: a search by the real command, a node that dies, and too few nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from ray_machines import ENV, Machines

from tests.launch.test_ranks import TRAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
MARK = "MACHINES_OF_A_TEST"
TORCHRUN = ("torchrun", "--nnodes", "2", "--nproc-per-node", "1", "train.py")


@dataclass
class World:
    """A project, a home, and the command in an environment that marks every process of its trials."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text(TRAIN)
        own = {
            "AUTOTUNE_HOME": str(self.folder / "home"),
            "AUTOTUNE_TRANSFER": "off",
            "PYTHONPATH": str(ROOT),
        }
        self.env = {**os.environ, **ENV, **own, MARK: str(self.folder)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def search(self, address: str, *options: str) -> subprocess.Popen[str]:
        store = f"sqlite:///{self.folder / 'mlflow.db'}"
        return self.start(
            "search",
            "--address",
            address,
            "--tracking-uri",
            store,
            "--trials",
            "1",
            *options,
            "--",
            *TORCHRUN,
        )

    def trials(self) -> list[dict[str, Any]]:
        out, err = self.start("show", "--json").communicate()
        assert out, err
        return json.loads(out)["trials"]

    def ranks(self) -> dict[str, psutil.Process]:
        """Rank -> process that trains now."""
        found: dict[str, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except psutil.Error:
                continue
            if env.get(MARK) == str(self.folder) and "AUTOTUNE_RANK" in env:
                found[env["AUTOTUNE_RANK"]] = process
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "ray").mkdir()
    found = Machines(tmp_path / "ray", 2)
    yield found
    found.close()


def await_(condition: Any, bound_s: float) -> bool:
    until_s = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def test_a_search_measures_the_ranks_of_both_nodes_as_one_trial(world: World, machines: Machines) -> None:
    search = world.search(machines.address, "--budget", "3m")
    out, err = search.communicate(timeout=400)
    assert search.returncode in (1, 8), out + err
    assert "torchrun with one process on each of 2 machines" in err
    measured = [t for t in world.trials() if (t.get("outcome") or {}).get("effective_batch")]
    assert measured, err
    outcome = measured[0]["outcome"]
    assert outcome["effective_batch"] == 32
    assert [figures["rank"] for figures in outcome["ranks"]] == [0, 1]
    assert world.ranks() == {}


def test_a_node_that_dies_ends_the_trial_which_runs_again_on_another(
    world: World, machines: Machines
) -> None:
    search = world.search(machines.address, "--budget", "6m")
    try:
        assert await_(lambda: len(world.ranks()) == 2, 120.0), "no trial began"
        first = world.ranks()
        machines.kill_node()
        assert await_(lambda: not any(p.is_running() for p in first.values()), 20.0), "a rank outlived it"
        machines.add_node()
        out, err = search.communicate(timeout=400)
    finally:
        search.kill()
    assert search.returncode in (1, 8), out + err
    trial = world.trials()[0]
    assert trial["attempt"] >= 2
    assert trial["outcome"]["effective_batch"] == 32
    assert world.ranks() == {}


def test_too_few_nodes_end_the_search_with_what_is_missing(world: World, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    alone = Machines(tmp_path / "ray", 1)
    try:
        search = world.search(alone.address, "--budget", "3m")
        _, err = search.communicate(timeout=200)
    finally:
        alone.close()
    assert search.returncode == 6, err
    assert "it needs 1 CPU on each of 2 nodes" in err
