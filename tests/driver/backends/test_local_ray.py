"""What a Ray of ours has started is known, its death is seen, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.driver.backends import local_ray
from autotune.driver.backends.local_ray import OwnRay
from autotune.launch.guard import guard, process_tree

SLEEPS = "import time; time.sleep(120)"
FORKS = f"import os, time\nif os.fork() == 0: os.setsid()\n{SLEEPS}"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that sleeps, named on its command line as one of Ray's."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(name: str, folder: str, code: str = SLEEPS) -> subprocess.Popen[bytes]:
        words = [name, "-S", "-c", code, f"--temp-dir={folder}"]
        made.append(subprocess.Popen(words, executable=sys.executable))
        # For a moment a process that becomes another program has no command line at all.
        within(lambda: folder in " ".join(local_ray._words(made[-1].pid)))
        return made[-1]

    yield begin
    for process in made:
        process_tree.send([*process_tree.descendants(process.pid), process.pid], signal.SIGKILL)
        process.wait()


def within(condition: Callable[[], object], bound_s: float = 30.0) -> None:
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)


@pytest.mark.parametrize(("name", "part"), [("/x/gcs_server", "head"), ("/x/raylet/raylet", "raylet")])
def test_a_part_that_dies_is_named(begun, tmp_path: Path, name: str, part: str) -> None:
    essential = begun(name, str(tmp_path))
    begun("other", str(tmp_path))
    within(lambda: len(process_tree.descendants(os.getpid())) >= 2)
    own = OwnRay(os.getpid(), str(tmp_path))
    assert own.look() == ""
    essential.kill()
    within(own.look)
    assert own.look() == part


def test_what_it_started_later_and_what_left_its_tree_is_ended(begun, tmp_path: Path) -> None:
    raylet = begun("/x/raylet/raylet", str(tmp_path), FORKS)
    within(lambda: process_tree.descendants(raylet.pid))
    (child,) = process_tree.descendants(raylet.pid)
    own = OwnRay(os.getpid(), str(tmp_path))
    own.look()
    raylet.kill()
    raylet.wait()
    assert not process_tree.is_zombie(child), "nobody's child now, and alive"
    own.end(0.0)
    within(lambda: process_tree.is_zombie(child))


def test_no_process_of_the_user_or_of_a_trial_is_touched(begun, tmp_path: Path) -> None:
    theirs = begun("gcs_server", "/somewhere/else")
    words = [sys.executable, "-S", "-c", SLEEPS, guard.__file__]
    code = f"import subprocess\nsubprocess.Popen({words!r})\n{SLEEPS}"
    worker = begun("/x/raylet/raylet", str(tmp_path), code)
    within(lambda: process_tree.descendants(worker.pid))
    (trial,) = process_tree.descendants(worker.pid)
    within(lambda: guard.__file__ in local_ray._words(trial))
    OwnRay(os.getpid(), str(tmp_path)).end(0.0)
    within(lambda: process_tree.is_zombie(worker.pid))
    assert theirs.poll() is None
    assert not process_tree.is_zombie(trial)
    process_tree.send([trial], signal.SIGKILL)


@pytest.fixture
def marked_as(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """Starts a process that sleeps, by a name of its own and with the mark of a Ray."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(name: str, folder: str) -> subprocess.Popen[bytes]:
        words = [name, "-S", "-c", SLEEPS]
        made.append(subprocess.Popen(words, executable=sys.executable, env={local_ray.MARK: folder}))
        within(lambda: made[-1].pid in process_tree.marked(folder, local_ray.MARK))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def rays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Makes folders of Rays in a temporary folder of the test's own, some of them with a living driver."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held: list[int] = []

    def make(name: str, *, study: str = "study", is_driven: bool = False) -> str:
        folder = tmp_path / f"{local_ray.FOLDER}{name}"
        (folder / "r" / "session").mkdir(parents=True)
        fd = local_ray.claim(str(folder), tmp_path / study)
        if is_driven:
            held.append(fd)
        else:
            os.close(fd)
        return str(folder)

    yield make
    for fd in held:
        os.close(fd)


def test_the_ray_of_a_living_driver_is_left_alone_and_that_of_a_dead_one_is_ended(
    marked_as: Any, rays: Any
) -> None:
    living, dead = rays("living", is_driven=True), rays("dead")
    first, second = marked_as("ray::IDLE", living), marked_as("ray::IDLE", dead)
    local_ray.end_abandoned_rays()
    assert second.wait(30) == -signal.SIGKILL
    assert first.poll() is None
    assert (Path(living).is_dir(), Path(dead).exists()) == (True, False)


def test_a_study_that_is_gone_on_with_has_no_living_driver_whatever_holds_its_lock(
    marked_as: Any, rays: Any, tmp_path: Path
) -> None:
    """A fork of a killed driver has inherited it. A copy of the study is another study."""
    folder = rays("left", is_driven=True)
    process = marked_as("ray::IDLE", folder)
    local_ray.end_abandoned_rays(tmp_path / "copy" / "study")
    assert process.poll() is None
    (tmp_path / "study").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "study")
    local_ray.end_abandoned_rays(tmp_path / "link")
    assert process.wait(30) == -signal.SIGKILL
    assert not Path(folder).exists()


def test_what_merely_inherited_the_mark_is_not_killed(marked_as: Any, rays: Any) -> None:
    folder = rays("mine")
    users, ray = marked_as("python", folder), marked_as("ray::Launcher.step", folder)
    local_ray.end_ray(folder)
    assert ray.wait(30) == -signal.SIGKILL
    assert users.poll() is None


def test_what_merely_reads_in_its_folder_is_not_killed(begun: Any, rays: Any) -> None:
    folder = rays("mine")
    reader = begun("tail", folder)
    local_ray.end_ray(folder)
    assert reader.poll() is None


def test_an_agent_whose_title_lies_over_its_variables_is_known_by_its_open_files(rays: Any) -> None:
    folders = [rays("mine"), rays("another")]
    code = "import sys, time\nfile = open(sys.argv[1], 'w')\nprint(flush=True)\ntime.sleep(120)"
    agents = list[subprocess.Popen[bytes]]()
    for folder in folders:
        # No mark among the variables, and the folder nowhere in the first word.
        words = ["ray::DashboardAgent", "-S", "-c", code, str(Path(folder, "r", "session", "agent.log"))]
        agents.append(subprocess.Popen(words, executable=sys.executable, env={}, stdout=subprocess.PIPE))
    try:
        for agent in agents:
            assert agent.stdout is not None
            assert agent.stdout.readline()
        local_ray.end_ray(folders[0])
        assert agents[0].wait(30) == -signal.SIGKILL
        assert agents[1].poll() is None
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def test_folders_that_no_dead_driver_has_claimed_stay(rays: Any, tmp_path: Path) -> None:
    rays("dead")
    for name in ("unclaimed", "piped"):
        (tmp_path / f"{local_ray.FOLDER}{name}").mkdir()
    os.mkfifo(tmp_path / f"{local_ray.FOLDER}piped" / local_ray.CLAIM)
    (tmp_path / f"{local_ray.FOLDER}link").symlink_to(tmp_path / "elsewhere")
    local_ray.end_abandoned_rays()
    left = {path.name.removeprefix(local_ray.FOLDER) for path in tmp_path.glob(f"{local_ray.FOLDER}*")}
    assert left == {"unclaimed", "piped", "link"}


def test_what_was_killed_is_waited_for(marked_as: Any, rays: Any) -> None:
    folder = rays("mine")
    marked_as("ray::IDLE", folder)
    local_ray.end_ray(folder, bound_s=30.0)
    assert process_tree.marked(folder, local_ray.MARK) == []


def test_a_ray_of_which_nothing_can_be_read_is_not_called_dead(begun, tmp_path: Path, monkeypatch) -> None:
    """As in a driver without a free descriptor."""
    essential = begun("/x/gcs_server", str(tmp_path))
    within(lambda: process_tree.descendants(os.getpid()))
    own = OwnRay(os.getpid(), str(tmp_path))
    monkeypatch.setattr(process_tree, "_read", lambda _: b"")
    assert [own.look(), own.look(), own.look()] == ["", "", ""]
    monkeypatch.undo()
    essential.kill()
    within(own.look)


def test_a_death_is_reported_at_the_second_look(begun, tmp_path: Path) -> None:
    essential = begun("/x/gcs_server", str(tmp_path))
    within(lambda: process_tree.descendants(os.getpid()))
    own = OwnRay(os.getpid(), str(tmp_path))
    essential.kill()
    essential.wait()
    assert [own.look(), own.look()] == ["", "head"]


def test_a_guard_that_looked_like_its_worker_before_it_became_one_is_spared(begun, tmp_path: Path) -> None:
    """It is seen between fork and exec."""
    ready = tmp_path / "ready"
    words = [sys.executable, "-S", "-c", SLEEPS, guard.__file__]
    code = (
        "import os, sys, time\n"
        f"if os.fork() == 0:\n    while not os.path.exists({str(ready)!r}): time.sleep(0.01)\n"
        f"    os.execv({sys.executable!r}, {words!r})\n{SLEEPS}"
    )
    worker = begun("/x/raylet/raylet", str(tmp_path), code)
    within(lambda: process_tree.descendants(worker.pid))
    (child,) = process_tree.descendants(worker.pid)
    own = OwnRay(os.getpid(), str(tmp_path))
    ready.touch()
    within(lambda: guard.__file__ in local_ray._words(child))
    own.end(0.0)
    within(lambda: process_tree.is_zombie(worker.pid))
    assert not process_tree.is_zombie(child)
    process_tree.send([child], signal.SIGKILL)


def test_a_pid_that_was_given_away_anew_is_known_by_its_second_owner(
    begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raylet = begun("/x/raylet/raylet", str(tmp_path))
    within(lambda: process_tree.descendants(os.getpid()))
    real = process_tree.start_ticks
    monkeypatch.setattr(process_tree, "start_ticks", lambda pid: 1)
    own = OwnRay(os.getpid(), str(tmp_path))
    monkeypatch.setattr(process_tree, "start_ticks", real)
    own.look()
    own.end(0.0)
    assert raylet.wait(30) == -signal.SIGKILL
