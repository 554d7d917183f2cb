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

import pytest

from autotune.driver import own_ray
from autotune.driver.own_ray import OwnRay
from autotune.launch import guard, sweep

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
        within(lambda: folder in " ".join(own_ray._words(made[-1].pid)))
        return made[-1]

    yield begin
    for process in made:
        sweep.send([*sweep.descendants(process.pid), process.pid], signal.SIGKILL)
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
    within(lambda: len(sweep.descendants(os.getpid())) >= 2)
    own = OwnRay(os.getpid(), str(tmp_path))
    assert own.look() == ""
    essential.kill()
    within(own.look)
    assert own.look() == part


def test_what_it_started_later_and_what_left_its_tree_is_ended(begun, tmp_path: Path) -> None:
    raylet = begun("/x/raylet/raylet", str(tmp_path), FORKS)
    within(lambda: sweep.descendants(raylet.pid))
    (child,) = sweep.descendants(raylet.pid)
    own = OwnRay(os.getpid(), str(tmp_path))
    own.look()
    raylet.kill()
    raylet.wait()
    assert not sweep.is_zombie(child), "nobody's child now, and alive"
    own.end(0.0)
    within(lambda: sweep.is_zombie(child))


def test_no_process_of_the_user_or_of_a_trial_is_touched(begun, tmp_path: Path) -> None:
    theirs = begun("gcs_server", "/somewhere/else")
    words = [sys.executable, "-S", "-c", SLEEPS, guard.__file__]
    code = f"import subprocess\nsubprocess.Popen({words!r})\n{SLEEPS}"
    worker = begun("/x/raylet/raylet", str(tmp_path), code)
    within(lambda: sweep.descendants(worker.pid))
    (trial,) = sweep.descendants(worker.pid)
    within(lambda: guard.__file__ in own_ray._words(trial))
    OwnRay(os.getpid(), str(tmp_path)).end(0.0)
    within(lambda: sweep.is_zombie(worker.pid))
    assert theirs.poll() is None
    assert not sweep.is_zombie(trial)
    sweep.send([trial], signal.SIGKILL)


@pytest.fixture
def marked_as(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """Starts a process that sleeps, by a name of its own and with the mark of a study."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(name: str, mark: str) -> subprocess.Popen[bytes]:
        words = [name, "-S", "-c", SLEEPS]
        made.append(subprocess.Popen(words, executable=sys.executable, env={own_ray.MARK: mark}))
        within(lambda: made[-1].pid in sweep.marked(mark, own_ray.MARK))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def test_a_copy_of_a_study_leaves_the_ray_of_the_first_one_alone(marked_as, tmp_path: Path) -> None:
    homes = [tmp_path / place / "study" for place in ("here", "copied")]
    for home in homes:
        home.mkdir(parents=True)
    (tmp_path / "link").symlink_to(homes[1])
    first, second = (marked_as("ray::IDLE", own_ray.mark_of(home)) for home in homes)
    own_ray.end_marked_rays(own_ray.mark_of(tmp_path / "link"))
    assert second.wait(30) == -signal.SIGKILL
    assert first.poll() is None


def test_what_merely_inherited_the_mark_is_not_killed(marked_as, tmp_path: Path) -> None:
    mark = own_ray.mark_of(tmp_path)
    users, rays = marked_as("python", mark), marked_as("ray::Launcher.step", mark)
    own_ray.end_marked_rays(mark)
    assert rays.wait(30) == -signal.SIGKILL
    assert users.poll() is None


def test_an_agent_whose_title_lies_over_its_variables_is_known_by_its_open_files(tmp_path: Path) -> None:
    folders = [tmp_path / f"{own_ray.FOLDER}{name}" for name in ("mine", "another")]
    code = "import sys, time\nfile = open(sys.argv[1], 'w')\nprint(flush=True)\ntime.sleep(120)"
    agents = list[subprocess.Popen[bytes]]()
    for folder in folders:
        (folder / "session" / "logs").mkdir(parents=True)
        own_ray.sign(str(folder), own_ray.mark_of(folder))
        # No mark among the variables, and the folder nowhere in the first word.
        words = ["ray::DashboardAgent", "-S", "-c", code, str(folder / "session" / "logs" / "agent.log")]
        agents.append(subprocess.Popen(words, executable=sys.executable, env={}, stdout=subprocess.PIPE))
    try:
        for agent in agents:
            assert agent.stdout is not None
            assert agent.stdout.readline()
        own_ray.end_marked_rays(own_ray.mark_of(folders[0]))
        assert agents[0].wait(30) == -signal.SIGKILL
        assert agents[1].poll() is None
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def test_folders_of_a_dead_driver_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mark = own_ray.mark_of(tmp_path / "study")
    for name, whose in (("mine", mark), ("another", own_ray.mark_of(tmp_path)), ("nobodys", "")):
        folder = tmp_path / f"{own_ray.FOLDER}{name}"
        (folder / "r" / "session").mkdir(parents=True)
        (folder / "r" / "session" / "experiment_state.json").touch()
        own_ray.sign(str(folder), whose)
    piped = tmp_path / f"{own_ray.FOLDER}piped"
    piped.mkdir()
    os.mkfifo(piped / own_ray.OWNER)
    (tmp_path / f"{own_ray.FOLDER}link").symlink_to(tmp_path / f"{own_ray.FOLDER}another")
    own_ray.remove_marked_folders(mark)
    left = {path.name.removeprefix(own_ray.FOLDER) for path in tmp_path.glob(f"{own_ray.FOLDER}*")}
    assert left == {"another", "nobodys", "piped", "link"}


def test_what_was_killed_is_waited_for(marked_as, tmp_path: Path) -> None:
    mark = own_ray.mark_of(tmp_path)
    marked_as("ray::IDLE", mark)
    own_ray.end_marked_rays(mark, bound_s=30.0)
    assert sweep.marked(mark, own_ray.MARK) == []


def test_a_ray_of_which_nothing_can_be_read_is_not_called_dead(begun, tmp_path: Path, monkeypatch) -> None:
    """As in a driver without a free descriptor."""
    essential = begun("/x/gcs_server", str(tmp_path))
    within(lambda: sweep.descendants(os.getpid()))
    own = OwnRay(os.getpid(), str(tmp_path))
    monkeypatch.setattr(sweep, "_read", lambda _: b"")
    assert [own.look(), own.look(), own.look()] == ["", "", ""]
    monkeypatch.undo()
    essential.kill()
    within(own.look)


def test_a_death_is_told_at_the_second_look(begun, tmp_path: Path) -> None:
    essential = begun("/x/gcs_server", str(tmp_path))
    within(lambda: sweep.descendants(os.getpid()))
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
    within(lambda: sweep.descendants(worker.pid))
    (child,) = sweep.descendants(worker.pid)
    own = OwnRay(os.getpid(), str(tmp_path))
    ready.touch()
    within(lambda: guard.__file__ in own_ray._words(child))
    own.end(0.0)
    within(lambda: sweep.is_zombie(worker.pid))
    assert not sweep.is_zombie(child)
    sweep.send([child], signal.SIGKILL)


def test_a_pid_that_was_given_away_anew_is_known_by_its_second_owner(
    begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raylet = begun("/x/raylet/raylet", str(tmp_path))
    within(lambda: sweep.descendants(os.getpid()))
    real = sweep.start_ticks
    monkeypatch.setattr(sweep, "start_ticks", lambda pid: 1)
    own = OwnRay(os.getpid(), str(tmp_path))
    monkeypatch.setattr(sweep, "start_ticks", real)
    own.look()
    own.end(0.0)
    assert raylet.wait(30) == -signal.SIGKILL
