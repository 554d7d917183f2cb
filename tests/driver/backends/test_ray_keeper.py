"""The keeper of a Ray ends it when its driver has ended, whatever ended that, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.driver.backends import local_ray
from autotune.driver.backends.ray_keeper import Keeper
from autotune.launch.guard import process_tree

ROOT = Path(__file__).parents[3]
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from autotune.driver.backends import local_ray as own_ray
from autotune.driver.backends.ray_keeper import Keeper
folder = sys.argv[1]
keeper = Keeper(folder, Path(folder, "study"))
env = {{own_ray.MARK: folder}}
words = ["ray::DashboardAgent", "-S", "-c", "import time; time.sleep(120)"]
agent = subprocess.Popen(words, executable=sys.executable, env=env, start_new_session=True)
print(keeper.pid, agent.pid, flush=True)
time.sleep(120)
"""
"""A driver whose Ray has left an agent: it lives on when its parent is killed."""


def within(condition: Callable[[], object], bound_s: float = 30.0) -> None:
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"{local_ray.FOLDER}mine"
    place.mkdir()
    return place


@pytest.fixture
def driver(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A driver, and the pids of its keeper and of its agent."""
    words = [sys.executable, "-c", DRIVER.format(root=str(ROOT)), str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    keeper, agent = map(int, process.stdout.readline().split())
    yield process, keeper, agent
    process.kill()
    process.communicate()
    process_tree.send([agent], signal.SIGKILL)


def test_a_killed_driver_leaves_no_process_and_no_folder(driver, folder: Path) -> None:
    process, keeper, agent = driver
    assert process_tree.start_ticks(agent)
    process.kill()
    within(lambda: process_tree.is_zombie(agent) and not folder.exists())
    within(lambda: process_tree.is_zombie(keeper))


def test_a_notice_to_the_whole_job_does_not_end_it(driver, folder: Path) -> None:
    process, keeper, agent = driver
    # It ignores signals once it has begun to wait.
    within(lambda: _waits(keeper))
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        process_tree.send([keeper], number)
    assert (folder.is_dir(), process_tree.is_zombie(agent)) == (True, False)
    process.kill()
    within(lambda: process_tree.is_zombie(agent) and not folder.exists())


def _waits(pid: int) -> bool:
    """Whether it has a file of the folder open, which it has only while it waits for the lock."""
    return any(Path(link).name == local_ray.CLAIM for link in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(file.readlink())
        except OSError:
            continue


def test_a_driver_that_lets_go_of_it_waits_until_all_is_gone(folder: Path) -> None:
    keeper = Keeper(str(folder), folder / "study")
    words = ["ray::IDLE", "-S", "-c", "import time; time.sleep(120)"]
    agent = subprocess.Popen(words, executable=sys.executable, env={local_ray.MARK: str(folder)})
    within(lambda: agent.pid in process_tree.marked(str(folder), local_ray.MARK))
    keeper.close()
    assert agent.wait(30) == -signal.SIGKILL
    assert not folder.exists()


def test_it_is_no_process_of_that_ray(folder: Path) -> None:
    """Or the driver would end it with the rest, and a look at Ray would find it."""
    keeper = Keeper(str(folder), folder / "study")
    try:
        within(lambda: _waits(keeper.pid))
        assert local_ray._of(str(folder)) == []
        assert local_ray.OwnRay(os.getpid(), str(folder))._roots == []
    finally:
        keeper.close()


def test_without_a_keeper_the_next_command_does_its_work(driver, folder: Path) -> None:
    process, keeper, agent = driver
    process_tree.send([keeper], signal.SIGKILL)
    process.kill()
    process.wait()
    # It shares the file that its driver has locked until the kernel has ended it.
    within(lambda: process_tree.is_zombie(keeper))
    local_ray.end_abandoned_rays()
    assert not folder.exists()
    within(lambda: process_tree.is_zombie(agent))
