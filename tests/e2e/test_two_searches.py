"""Two searches on one machine: real processes of the command, in one folder or of two accounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accounts import Account

from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.machine_lock import MachineLock
from autotune.store.journal import Journal

pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
SHORT = ("--budget", "90s", "--knob", "fused_optimizer", "--trials", "2")
NO_GAIN = (0, 1, 8)
WAITS = "waiting up to"


def spans(place: Any) -> list[tuple[float, float, str]]:
    """Of each study: from the start of its first trial to the end of its last one, and its label."""
    found: list[tuple[float, float, str]] = []
    for path in place.home.glob("studies/*/journal.db"):
        with Journal.read(path) as journal:
            entries = list(journal.entries())
        label = next(entry.data["spec"]["label"] for entry in entries if entry.kind == "opened")
        times = [entry.wall_s for entry in entries if entry.kind in ("started", "finished")]
        found.append((min(times), max(times), label))
    return sorted(found)


def test_two_in_one_folder_take_turns_under_labels_of_their_own(place) -> None:
    both = [place.begin("plain_loop.py", *SHORT) for _ in range(2)]
    try:
        ended = [(process.communicate(timeout=300), process) for process in both]
    finally:
        for process in both:
            process.kill()
    assert all(process.returncode in NO_GAIN for _, process in ended), ended
    (waited,) = [err for (_, err), _ in ended if WAITS in err]
    first, second = spans(place)
    assert first[1] <= second[0], "no two trials ran at once"
    assert first[2] != second[2]
    assert f"study {first[2]} of " in waited, "the first one is named"
    assert "has ended after" in waited


def test_a_killed_search_holds_up_the_next_one_no_longer(place) -> None:
    first = place.begin("plain_loop.py", "--budget", "10m", "--knob", "fused_optimizer")
    second: subprocess.Popen[str] | None = None
    try:
        place.wait_for_finished(1)
        second = place.begin("plain_loop.py", *SHORT)
        assert second.stderr is not None
        for line in second.stderr:
            if WAITS in line:
                break
        assert f"(pid {first.pid})" in line
        first.kill()
        _, err = second.communicate(timeout=200)
        assert second.returncode in NO_GAIN, err
        assert "has ended after" in err
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()


@pytest.fixture
def held() -> Any:
    """This process is a search that measures here."""

    def hold(folder: Path) -> MachineLock:
        request = ClaimRequest(study_id="held", label="train-1")
        lock = MachineLock(request, Resources.of_machine(os.environ), folder=folder)
        assert lock.ahead() is None
        lock.begin()
        made.append(lock)
        return lock

    made: list[MachineLock] = []
    yield hold
    for lock in made:
        lock.release()


def test_a_search_that_shares_measures_at_once_and_its_answer_names_the_other(place, held) -> None:
    place.locks.mkdir()
    held(place.locks)
    ended = place.search("plain_loop.py", *SHORT[2:], "--share", "--json", budget="90s")
    assert ended.exit in NO_GAIN, ended
    assert WAITS not in ended.err
    assert "busy: study train-1 of " in ended.err
    assert "measured on the same CPUs" in ended.out


def test_another_accounts_search_is_waited_for_too(held, account: Account, shared_folder: Path) -> None:
    locks = shared_folder / "locks"
    locks.mkdir()
    locks.chmod(0o1777)
    shutil.copy(ROOT / "tests" / "scripts" / "plain_loop.py", shared_folder / "train.py")
    held(locks)
    search = ["search", "--script", "train.py", "--budget", "1m", "--driver", "inline", "--wait", "1s"]
    done = subprocess.run(
        account.command(sys.executable, "-m", "autotune", *search),
        cwd=shared_folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(shared_folder),
            "AUTOTUNE_HOME": str(shared_folder / "theirs"),
            "AUTOTUNE_LOCKS": str(locks),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 6, done.stderr
    assert f"{WAITS} 1 s: study train-1 of " in done.stderr
    assert f"(pid {os.getpid()}) has used the same CPUs since" in done.stderr
