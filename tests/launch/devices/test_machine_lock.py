"""Searches on the same CPUs or accelerators take turns, across accounts; a dead one holds up no other."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accounts import Account

from autotune.launch.devices import claims
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.machine_lock import MachineLock

Make = Callable[..., MachineLock]
ROOT = Path(__file__).parents[3]
US = claims._user(os.geteuid())


def resources(cpus: str = "01", devices: str = "") -> Resources:
    return Resources(cpus=frozenset(map(int, cpus)), devices=frozenset(devices))


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Make]:
    """Claims a machine for a study of this name."""
    made: list[MachineLock] = []

    def make(name: str, on: Resources | None = None, *, folder: Path = tmp_path) -> MachineLock:
        request = ClaimRequest(study_id=f"id-{name}", label=name)
        made.append(MachineLock(request, on or resources(), folder=folder))
        return made[-1]

    yield make
    for one in made:
        one.release()


HOLDER = """
import sys
from pathlib import Path
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.machine_lock import MachineLock
request = ClaimRequest(study_id="id-theirs", label="theirs")
lock = MachineLock(request, Resources(cpus=frozenset((0,))), folder=Path(sys.argv[1]))
lock.ahead()
lock.begin()
print("held", flush=True)
sys.stdin.read()
"""


def holder(folder: Path, account: Account | None = None) -> subprocess.Popen[str]:
    """Another process that holds CPU 0."""
    line = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(
        line if account is None else account.command(*line),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_second_search_waits_and_names_the_first(lock: Make) -> None:
    first, second = lock("one"), lock("two")
    assert first.ahead() is None
    first.begin()
    ahead = second.ahead()
    assert ahead is not None
    assert (ahead.label, ahead.user, ahead.pid, ahead.shared) == ("one", US, os.getpid(), "CPUs")
    assert ahead.text.startswith(f"study one of {US} (pid {os.getpid()}) has used the same CPUs since 20")
    assert first.ahead() is None, "a later search is not waited for"
    first.release()
    assert second.ahead() is None


def test_turns_come_in_the_order_of_arrival(lock: Make) -> None:
    first, second, third = lock("one"), lock("two"), lock("three")
    for one in (first, second, third):
        one.ahead()
    first.release()
    waiting = third.ahead()
    assert waiting is not None
    assert waiting.text.startswith(f"study two of {US} (pid {os.getpid()}) has waited for the same CPUs")
    assert second.ahead() is None


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        (resources("01"), resources("12"), "CPUs"),
        (resources("01"), resources("23"), ""),
        (resources("01", "a"), resources("01", "b"), ""),
        (resources("01", "ab"), resources("23", "b"), "accelerators"),
        (resources("01", "a"), resources("01"), "CPUs"),
        (resources("01", "a"), resources("23"), ""),
    ],
)
def test_searches_share_accelerators_or_cpus_that_one_of_them_computes_on(
    lock: Make, ours: Resources, theirs: Resources, shared: str
) -> None:
    lock("theirs", theirs).ahead()
    ahead = lock("ours", ours).ahead()
    assert (ahead.shared if ahead is not None else "") == shared


def test_trials_of_one_study_do_not_wait_for_each_other(lock: Make) -> None:
    lock("one").ahead()
    assert lock("one").ahead() is None


def test_what_measures_beside_is_named_and_what_waits_is_not(lock: Make) -> None:
    first, second = lock("one"), lock("two")
    first.ahead()
    first.begin()
    second.ahead()
    assert first.beside() == ()
    second.begin()
    (culprit,) = first.beside()
    assert (culprit.study, culprit.pid) == (f"study two of {US}", os.getpid())
    assert [one.study for one in second.beside()] == [f"study one of {US}"]


def test_a_killed_holder_is_waited_for_no_more_and_its_file_is_removed(lock: Make, tmp_path: Path) -> None:
    process = holder(tmp_path)
    ours = lock("ours")
    ahead = ours.ahead()
    assert ahead is not None
    assert ahead.pid == process.pid
    end(process)
    assert ours.ahead() is None
    assert len(list(tmp_path.iterdir())) == 2
    lock("next").ahead()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_claim_lives_on_with_a_process_that_inherits_it(lock: Make, tmp_path: Path) -> None:
    """The guard of a trial on a cluster, whose worker has died."""
    first, second = lock("one"), lock("two")
    first.ahead()
    (fd,) = first.descriptors
    guard = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[fd])
    os.close(fd)
    first._fd = -1
    assert second.ahead() is not None
    guard.communicate(b"\n")
    assert second.ahead() is None


def test_a_fork_of_the_program_that_searches_does_not_keep_the_machine(lock: Make) -> None:
    first, second = lock("one"), lock("two")
    first.ahead()
    gone, goes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(goes)
        os.read(gone, 1)
        os._exit(0)
    try:
        os.close(gone)
        assert second.ahead() is not None, "the child has not withdrawn it"
        first.release()
        assert second.ahead() is None
    finally:
        os.close(goes)
        os.waitpid(child, 0)


def test_a_number_that_was_free_again_does_not_come_before_a_search_that_measures(
    lock: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lock("one"), lock("two")
    first.ahead()
    third = lock("three")
    second.ahead()
    first.release()
    # As it was listed before the second one came.
    real, listings = claims.numbers, [[], []]
    monkeypatch.setattr(claims, "numbers", lambda folder: listings.pop() if listings else real(folder))
    third.ahead()
    assert (second._number, third._number) == (2, 3)


def test_two_that_come_at_once_get_different_numbers(lock: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lock("one"), lock("two")
    first.ahead()
    real, listings = claims.numbers, [[], []]
    monkeypatch.setattr(claims, "numbers", lambda folder: listings.pop() if listings else real(folder))
    assert second.ahead() is not None
    assert second._number == 2


def claim(**changed: object) -> dict[str, object]:
    whole = {
        "study_id": "x",
        "label": "theirs",
        "pid": 1,
        "since_s": 0,
        "measures": 1,
        "cpus": [0],
        "devices": [],
    }
    return whole | changed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "no json",
        "[" * 50_000,
        json.dumps(claim(cpus=None)),
        json.dumps(claim(since_s=1e300)),
        json.dumps(claim(pid="many")),
        json.dumps(claim()).replace('"since_s": 0', '"since_s": NaN'),
    ],
)
def test_a_file_that_is_no_claim_holds_up_nobody(lock: Make, tmp_path: Path, text: str) -> None:
    path = claims.claim_path(tmp_path, 1)
    path.write_text(text)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert lock("ours").ahead() is None
        path.write_text(json.dumps(claim()))
        assert lock("ours").ahead() is not None, "a whole one does"


def test_what_is_no_file_of_locks_is_passed_over(lock: Make, tmp_path: Path) -> None:
    os.mkfifo(claims.claim_path(tmp_path, 1))
    claims.claim_path(tmp_path, 2).mkdir()
    claims.claim_path(tmp_path, 3).symlink_to("/etc/passwd")
    (tmp_path / f"{claims.PREFIX}{10**12}").touch()
    assert lock("ours").ahead() is None
    assert claims.claim_path(tmp_path, 4).is_file()


def test_a_label_cannot_act_on_the_terminal(lock: Make, tmp_path: Path) -> None:
    path = claims.claim_path(tmp_path, 1)
    path.write_text(json.dumps(claim(label="\x1b[2Jan\u202eevil name" + "x" * 500)))
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ahead = lock("ours").ahead()
    assert ahead is not None
    assert ahead.label == ("??2Jan?evil?name" + "x" * 500)[:64]


def test_others_can_read_a_claim_whatever_our_umask(lock: Make, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lock("ours").ahead()
    finally:
        os.umask(before)
    assert claims.claim_path(tmp_path, 1).stat().st_mode & 0o777 == 0o644


def test_where_nothing_can_be_locked_it_is_our_turn_with_a_warning(
    lock: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = lock("ours", folder=tmp_path / "no" / "such")
    with caplog.at_level(logging.WARNING):
        assert ours.ahead() is None
        ours.begin()
    assert ours.beside() == ()
    (record,) = caplog.records
    assert "cannot be locked out" in record.getMessage()


def test_a_search_of_another_account_is_waited_for_and_named(
    lock: Make, account: Account, shared_folder: Path
) -> None:
    process = holder(shared_folder, account)
    try:
        ours = lock("ours", folder=shared_folder)
        ahead = ours.ahead()
        assert ahead is not None
        assert ahead.study == f"study theirs of {account.name}"
    finally:
        end(process)
    assert ours.ahead() is None
