# ruff: noqa: E501, PTH208 (scripts as lines; os itself is what is tested)
"""The launcher with real processes: how trials end, and that nothing is left."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.launch import nsys, process
from autotune.launch import running_trial as running
from autotune.launch.deadline import shortened
from autotune.launch.direct_run import run_plain
from autotune.launch.guard import guard, owned_resources, process_tree, sysv_ipc
from autotune.launch.guard.owned_resources import RECORD
from autotune.launch.process import LocalRunner
from autotune.launch.result import trial_output
from autotune.launch.runner import NOT_BEGUN
from autotune.launch.workspace import isolation as enclosure
from autotune.launch.workspace import orphans, runtime_library
from autotune.launch.workspace.folders import temporary_folder
from autotune.model.measurement import Measurement
from autotune.model.trial import STOPPED_S, Assignment, Failure, FailureKind, Launch
from autotune.testing.runners import RunnerContract

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from autotune.launch.runner import TrialResult

pytestmark = pytest.mark.thorough


MINE = f"a1-{os.getpid() % 2**24:06x}"
"""Processes of a trial are found by its name: two runs of these tests must not end each other's."""


def only(runner: LocalRunner, assignment: Assignment) -> TrialResult:
    (ended,) = runner.run(assignment)
    assert process_tree.marked(assignment.uid) == []
    return ended


def failure(runner: LocalRunner, assignment: Assignment) -> Failure:
    outcome = only(runner, assignment).outcome
    assert isinstance(outcome, Failure), outcome
    return outcome


def test_a_good_trial_is_measured_and_its_scratch_is_gone(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    ended = only(runner(), assignment("good()"))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert ended.outcome.throughput.unit == "samples/s"
    assert 100 < ended.outcome.throughput.value < 400
    assert ended.outcome.memory.pss is not None
    assert ended.facts is not None
    left = {p.name for p in (tmp_path / "study" / "trials" / f"t0000-{MINE}").iterdir()}
    assert left == {"plan.json", "events.jsonl", "result.json", "stdout.log", "stderr.log", "guard.log"}


ENDINGS = [
    ("sys.stderr.write('boom'); sys.exit(3)", FailureKind.CRASH_EXIT, "exit code 3: boom"),
    (
        "import argparse; argparse.ArgumentParser().parse_args(['--x=1'])",
        FailureKind.CONFIG_REJECTED,
        "--x=1",
    ),
    ("os.kill(os.getpid(), 11)", FailureKind.CRASH_SIGNAL, "SIGSEGV"),
    ("os.kill(os.getpid(), 9)", FailureKind.OOM_HOST, "SIGKILL"),
    ("os._exit(0)", FailureKind.NO_METRIC, "without a final report"),
    ("writer.write(Done(why='script_end', steps=0))", FailureKind.NO_METRIC, "without an optimizer step"),
    (
        "step(); writer.write(Done(why='script_end', steps=1))",
        FailureKind.WARMUP_SHORT,
        "after 1 optimizer step, and the first one cannot be timed",
    ),
    (
        "writer.write(Broke(kind='oom_cuda', error='OutOfMemoryError', message='no', tail='', phase='window')); os._exit(1)",
        FailureKind.OOM_CUDA,
        "OutOfMemoryError",
    ),
]


@pytest.mark.parametrize(("text", "kind", "words"), ENDINGS)
def test_every_ending_has_its_kind(
    runner: Any, assignment: Any, text: str, kind: FailureKind, words: str
) -> None:
    found = failure(runner(), assignment(text))
    assert found.kind is kind
    assert words in found.message
    assert "\n" not in found.message


def test_every_trial_reads_the_file_on_standard_input_from_its_beginning(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("words to learn\n", encoding="utf-8")
    requested = assignment("sys.exit(sys.stdin.read().strip() or 'nothing')")
    given = replace(requested, launch=replace(requested.launch, stdin=str(corpus)))
    trials = runner()
    assert failure(trials, given).message == "exit code 1: words to learn"
    again = replace(given, uid=given.uid.replace("t0000", "t0001"))
    assert failure(trials, again).message == "exit code 1: words to learn"
    without = replace(requested, uid=given.uid.replace("t0000", "t0002"))
    assert failure(trials, without).message == "exit code 1: nothing"


def test_an_interpreter_that_does_not_exist_is_reported(runner: Any, assignment: Any) -> None:
    found = failure(runner(command=lambda _: ("/no/such/python",)), assignment(""))
    assert found.kind is FailureKind.INFRA_LOST
    assert "could not be started" in found.message


HANGS = {
    "sleeps": "time.sleep(60)",
    "stops itself": "os.kill(os.getpid(), 19)",
    "ignores the request to end": "import signal; signal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "loops": "while True: pass",
}


@pytest.mark.parametrize("text", HANGS.values(), ids=HANGS.keys())
def test_a_hang_is_ended_by_lack_of_progress(runner: Any, assignment: Any, text: str) -> None:
    begun = time.monotonic()
    found = failure(runner(progress_floor_s=0.4), assignment("for _ in range(3): step()\n" + text))
    assert found.kind is FailureKind.TIMEOUT_PROGRESS
    assert "3 optimizer steps were done" in found.message
    assert time.monotonic() - begun < 25, "that is the deadline"


@pytest.mark.slow  # it has to last longer than the limit
def test_an_evaluation_that_gives_signs_of_life_is_no_hang(runner: Any, assignment: Any) -> None:
    beats = "for _ in range(3): step()\nbegin = now(); step(); writer.write(Steps(rows=())); time.sleep(1.2); step()"
    calm = "\nfinish(begin)"
    assert isinstance(only(runner(progress_floor_s=0.4), assignment(beats + calm)).outcome, Measurement)
    hung = assignment(beats + "\ntime.sleep(60)", uid=f"t0001-{MINE}")
    assert failure(runner(progress_floor_s=0.4), hung).kind is FailureKind.TIMEOUT_PROGRESS
    deaf = assignment(
        beats.replace("rows=()", "rows=(StepRow(t_ns=now(), wait_ns=0, samples=4),)"), uid=f"t0002-{MINE}"
    )
    assert failure(runner(progress_floor_s=0.4), deaf).kind is FailureKind.TIMEOUT_PROGRESS


def test_the_plan_is_for_its_owner_only(runner: Any, assignment: Any, tmp_path: Path) -> None:
    only(runner(), assignment("good()", argv=("--api-key=secret",)))
    folder = tmp_path / "study" / "trials" / f"t0000-{MINE}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "plan.json").stat().st_mode & 0o777 == 0o600


def test_a_mapped_file_is_not_the_trials_memory(runner: Any, assignment: Any, user: Path) -> None:
    with (user / "tokens.bin").open("wb") as file:
        file.truncate(300 << 20)
    text = (
        "import mmap; m = mmap.mmap(os.open('tokens.bin', os.O_RDONLY), 0, prot=mmap.PROT_READ)\n"
        "x = sum(m[i] for i in range(0, len(m), 4096)); time.sleep(0.6); good()"
    )
    outcome = only(runner(), assignment(text, memory=200 << 20)).outcome
    assert isinstance(outcome, Measurement), outcome
    assert (outcome.memory.pss or 0) < 100 << 20


def test_the_shared_part_of_a_process_is_counted_by_share_and_without_files() -> None:
    with mmap.mmap(-1, 64 << 20) as kept:
        kept.write(b"1" * (64 << 20))
        both, share = guard._rss(os.getpid()), guard._pss(os.getpid())
    assert 64 << 20 < share <= both < guard._resident(os.getpid()) + (64 << 20)
    assert guard._rss(2**22 + 1) == guard._pss(2**22 + 1) == 0


SHARED = """
import mmap
def share(name):
    with open(name, 'wb+') as f:
        f.truncate(4096)
        return mmap.mmap(f.fileno(), 4096)
ended = os.fork()
if ended == 0:
    share(f'/dev/shm/torch_{os.getpid()}_11_1')
    os._exit(0)
os.waitpid(ended, 0)
if os.fork() == 0:
    own = share(f'/dev/shm/torch_{os.getpid()}_11_0')
    taken = open(f'/dev/shm/torch_{ended}_11_1', 'rb+'); taken = mmap.mmap(taken.fileno(), 4096)
    print(f'torch_{os.getpid()}_11_0 torch_{ended}_11_1', flush=True)
    time.sleep(60)
time.sleep(0.6)
good()
"""


def test_shared_memory_that_a_killed_tree_leaves_is_removed(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    """As with torch's sharing strategy ``file_system``, whose names outlive a kill."""
    other = Path(f"/dev/shm/torch_{os.getpid()}_11_2")
    other.touch()
    try:
        ended = only(runner(isolation="redirect"), assignment(SHARED))
        assert isinstance(ended.outcome, Measurement), ended.outcome
        reported = (tmp_path / "study" / "trials" / f"t0000-{MINE}" / "stdout.log").read_text().split()
        assert len(reported) == 2
        assert [name for name in reported if Path("/dev/shm", name).exists()] == []
        assert other.exists()
    finally:
        other.unlink()


NAMED = """
import mmap
for name in ("nccl-{mine}", "psm_{mine}", "users_{mine}"):
    file = os.open("/dev/shm/" + name, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(file, 4096)
    globals()[name.replace("-", "_")] = mmap.mmap(file, 4096)
kept = mmap.mmap(os.open("/dev/shm/psm_theirs_{mine}", os.O_RDWR), 4096)
for _ in range(3): step()
time.sleep(60)
"""


def test_of_shared_memory_only_what_came_with_the_trial_and_has_a_librarys_name_is_removed(
    runner: Any, assignment: Any
) -> None:
    folder = Path("/dev/shm")
    names = [f"nccl-{MINE}", f"psm_{MINE}", f"users_{MINE}", f"psm_theirs_{MINE}"]
    (folder / names[3]).write_bytes(bytes(4096))
    try:
        one = runner(progress_floor_s=0.4, isolation="redirect")
        hung = failure(one, assignment(NAMED.format(mine=MINE)))
        assert hung.kind is FailureKind.TIMEOUT_PROGRESS, hung
        assert [name for name in names if (folder / name).exists()] == names[2:]
    finally:
        for name in names:
            (folder / name).unlink(missing_ok=True)


def test_what_a_living_process_uses_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/dev/shm", f"psm_{MINE}_used")
    with shared.open("w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            guard._remove_objects({shared.name}, set(), set())
            assert shared.exists()
    guard._remove_objects({shared.name}, {shared.name}, set())
    assert shared.exists(), "it was there before the trial"
    guard._remove_objects({shared.name}, set(), set())
    assert not shared.exists()


def test_of_the_same_name_in_shared_memory_of_a_trials_own_nothing_is_known_here(tmp_path: Path) -> None:
    """It is another file, and the machine's may be somebody else's."""
    name = f"psm_{MINE}_twice"
    theirs, own = Path("/dev/shm", name), tmp_path / "dev" / "shm" / name
    own.parent.mkdir(parents=True)
    try:
        for path in (theirs, own):
            path.write_bytes(bytes(4096))
        with own.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert guard._mapped_objects([os.getpid()]) & {name} == set()
        with theirs.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert guard._mapped_objects([os.getpid()]) & {name} == {name}
    finally:
        theirs.unlink(missing_ok=True)


def test_what_cannot_be_started_leaves_nothing_behind(
    runner: Any, assignment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(11, "no process can be started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    one = runner(isolation="redirect")
    assert failure(one, assignment("good()", uid="t0007-a1-000000")).kind is FailureKind.INFRA_LOST
    assert not temporary_folder("t0007-a1-000000").exists()


def test_a_hang_leaves_its_stacks(runner: Any, assignment: Any) -> None:
    text = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2)\nfor _ in range(3): step()\n"
    text += "def stuck(): time.sleep(60)\nstuck()"
    found = failure(runner(progress_floor_s=0.5), assignment(text))
    assert "in stuck" in str(found.evidence["log_tail"])


def test_the_wall_limit_holds(runner: Any, assignment: Any) -> None:
    found = failure(runner(), assignment("while True: step(); time.sleep(0.02)", deadline_s=0.8))
    assert found.kind is FailureKind.TIMEOUT_TOTAL


def test_the_memory_limit_counts_the_whole_tree(runner: Any, assignment: Any) -> None:
    text = "pid = os.fork()\nif pid == 0:\n    x = b'1' * (300 << 20)\n    time.sleep(60)\ntime.sleep(60)"
    found = failure(runner(), assignment(text, memory=200 << 20))
    assert found.kind is FailureKind.OOM_HOST
    assert "0.20 GiB" in found.message


SHARING = """
import mmap
kept = mmap.mmap(-1, 200 << 20, {flags}, mmap.PROT_READ | mmap.PROT_WRITE)
for at in range(0, len(kept), 4096):
    kept[at] = 1
ends = []
for _ in range(8):
    read, write = os.pipe()
    if os.fork() == 0:
        total = sum(kept[at] for at in range(0, len(kept), 4096))
        os.write(write, b"1")
        time.sleep(60)
    ends.append(read)
for end in ends:
    os.read(end, 1)
time.sleep(1.0)
good()
"""


@pytest.mark.parametrize(
    "flags", ["mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS", "mmap.MAP_SHARED | mmap.MAP_ANONYMOUS"]
)
def test_a_tensor_that_eight_workers_read_is_no_reason_to_end_a_trial_and_counts_once(
    runner: Any, assignment: Any, flags: str
) -> None:
    """Their resident sizes are 1.8 GB together, and three times what the trial may take."""
    outcome = only(runner(), assignment(SHARING.format(flags=flags), memory=600 << 20)).outcome
    assert isinstance(outcome, Measurement), outcome
    assert 200 << 20 < (outcome.memory.pss or 0) < 400 << 20, "what is learnt of its config"


def test_a_trial_takes_no_more_than_is_free_when_it_begins(runner: Any, assignment: Any) -> None:
    """Whoever planned it may have done so hours ago, or on another machine."""
    text = "x = b'1' * (300 << 20)\ntime.sleep(60)"
    found = failure(runner(free_memory=lambda: 200 << 20), assignment(text, memory=2 << 30))
    # Ten times as much was free when it was planned: that it does not do now is not its own.
    assert found.kind is FailureKind.CONTENDED
    assert "others had taken memory" in found.message
    assert "0.20 GiB" in found.message
    much = runner(free_memory=lambda: 300)._memory_limit
    assert [much(assignment("", memory=n)) for n in (0, 200, 400)] == [300, 200, 300]
    assert runner(free_memory=lambda: 0)._memory_limit(assignment("", memory=200)) == 1
    assert runner()._memory_limit(assignment("", memory=0)) == 0


def test_where_nearly_all_is_free_that_was_planned_too_much_is_its_own(runner: Any, assignment: Any) -> None:
    text = "x = b'1' * (300 << 20)\ntime.sleep(60)"
    found = failure(runner(free_memory=lambda: 200 << 20), assignment(text, memory=220 << 20))
    assert found.kind is FailureKind.OOM_HOST


def test_a_flood_of_output_is_drained_and_bounded(runner: Any, assignment: Any, tmp_path: Path) -> None:
    text = (
        "os.write(1, b'FIRST')\nfor _ in range(32): os.write(1, b'\\xff\\0' * (1 << 19))\n"
        "os.write(1, b'LAST'); os.write(2, b'\\xfe bad bytes'); sys.exit(1)"
    )
    found = failure(runner(), assignment(text))
    log = (tmp_path / "study" / "trials" / f"t0000-{MINE}" / "stdout.log").read_bytes()
    assert log.startswith(b"FIRST")
    assert log.endswith(b"LAST")
    assert len(log) < 5.1 * (1 << 20)
    assert b"bytes left out" in log
    assert "bad bytes" in str(found.evidence["log_tail"])


def test_of_a_measured_trial_the_end_of_its_output_is_kept(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    text = "os.write(1, b'FIRST' + b'x' * 300_000 + b'LAST'); os.write(2, b'short')\ngood()"
    assert isinstance(only(runner(), assignment(text)).outcome, Measurement)
    folder = tmp_path / "study" / "trials" / f"t0000-{MINE}"
    log = (folder / "stdout.log").read_bytes()
    assert log.startswith(b"[234473 bytes left out]\nx")
    assert log.endswith(b"LAST")
    assert (folder / "stderr.log").read_bytes() == b"short"


def test_of_trials_that_failed_the_last_keep_all_of_their_output(tmp_path: Path) -> None:
    folders = [tmp_path / "trials" / f"t{n:04d}-a1-0" for n in range(trial_output.KEPT_FAILURES + 3)]
    for n, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_bytes(b"x" * 200_000)
        (folder / "result.json").touch()
        os.utime(folder / "result.json", (n, n))
    running, short = tmp_path / "trials" / "t0098-a1-0", tmp_path / "trials" / "t0099-a1-0"
    for folder in (running, short):
        folder.mkdir()
    (running / "stdout.log").write_bytes(b"y" * 200_000)
    (short / "stdout.log").write_bytes(b"z")
    (short / "result.json").touch()
    trial_output.trim_logs(folders[-1], failed=True)
    sizes = [(folder / "stderr.log").stat().st_size for folder in folders]
    assert [size > 100_000 for size in sizes] == [False] * 3 + [True] * trial_output.KEPT_FAILURES
    assert (running / "stdout.log").stat().st_size == 200_000
    for _ in range(2):
        trial_output.trim_logs(folders[-1], failed=False)
        kept = (folders[-1] / "stderr.log").read_bytes()
        assert kept == b"[134464 bytes left out]\n" + b"x" * trial_output.KEPT_LOG_BYTES


def test_too_little_disk_space_refuses_the_trial(runner: Any, assignment: Any) -> None:
    found = failure(runner(space_floor_bytes=1 << 60), assignment("good()"))
    assert found.kind is FailureKind.DISK


def test_stop_from_another_thread_ends_the_trial(runner: Any, assignment: Any) -> None:
    launcher = runner()
    threading.Timer(0.5, launcher.stop).start()
    assert failure(launcher, assignment("time.sleep(60)")).kind is FailureKind.KILLED_USER
    assert isinstance(only(launcher, assignment("good()", uid=f"t0001-{MINE}")).outcome, Measurement)


def test_a_stop_right_before_a_trial_begins_is_not_forgotten(runner: Any, assignment: Any) -> None:
    launcher = runner()
    launcher.stop()
    assert failure(launcher, assignment("time.sleep(60)")).kind is FailureKind.KILLED_USER
    assert isinstance(only(launcher, assignment("good()", uid=f"t0001-{MINE}")).outcome, Measurement)


def test_a_program_with_many_files_open_has_trials_too(runner: Any, assignment: Any) -> None:
    """From 1024 on `select` takes no descriptor, neither here nor in the guard, which inherits one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 1400:
        pytest.skip("so many files cannot be opened here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert isinstance(only(runner(), assignment("good()")).outcome, Measurement)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_trial_that_fills_the_disk_is_ended_before_it_is_full(
    runner: Any, assignment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is a fake: so much is free until the trial has written its file."""
    uid = f"t0000-{MINE}"
    big = tmp_path / "study" / "trials" / uid / "big"

    def disk_usage(place: object) -> SimpleNamespace:
        return SimpleNamespace(total=100 << 30, free=(100 << 20) if big.exists() else 50 << 30)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    text = "Path(plan.trial_dir, 'big').touch()\ntime.sleep(60)"
    found = failure(runner(space_floor_bytes=None), assignment(text))
    assert found.kind is FailureKind.DISK
    assert "left nearly no space" in found.message
    assert NOT_BEGUN not in found.evidence, "it has begun, and the next one may have room"


def test_time_that_was_waited_for_a_device_is_taken_off_the_trials(assignment: Any) -> None:
    made = assignment("")
    assert shortened(made, 0.2) is made
    fidelity = shortened(made, 6.0).segments[0].fidelity
    assert (fidelity.deadline_s, fidelity.setup_s) == (24.0, 20.0)
    assert shortened(made, 100.0).segments[0].fidelity.deadline_s == 15.0


TRAPS = """
folder = Path(plan.trial_dir)
os.remove(plan.events_path); os.mkfifo(plan.events_path)
os.mkfifo(folder / 'faults.log')
os.symlink({secret!r}, folder / 'stacks.txt')
os.symlink({mine!r}, folder / 'result.json.part')
target = folder / 'autotune-{uid}'; target.mkdir()
os.symlink({mine!r}, target / 'cgroup.kill')
(folder / 'group').unlink(missing_ok=True); (folder / 'group').write_text(str(target))
os.rmdir(folder / 'output') if (folder / 'output').exists() else None
os.symlink({theirs!r}, folder / 'output')
sys.exit(3)
"""


def test_what_a_trial_puts_into_its_folder_leads_nowhere(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    """Links to the user's files, and pipes that nobody writes to: the folder is the trial's as well as ours."""
    secret, mine, theirs = tmp_path / "id_rsa", tmp_path / "mine.txt", tmp_path / "theirs"
    secret.write_text("PRIVATE KEY")
    mine.write_text("as it was")
    (theirs / "open").mkdir(parents=True)
    (theirs / "open").chmod(0o755)
    uid = f"t0000-{MINE}"
    text = TRAPS.format(secret=str(secret), mine=str(mine), theirs=str(theirs), uid=uid)
    found = failure(runner(), assignment(text))
    assert found.kind is FailureKind.CRASH_EXIT
    assert "PRIVATE" not in repr(found)
    assert mine.read_text() == "as it was"
    assert (theirs / "open").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "study" / "trials" / uid / "output").is_symlink()


CRASHED = """
import mmap
file = os.open("/dev/shm/nccl-{mine}-crash", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(file, 4096)
kept = mmap.mmap(file, 4096)
time.sleep(1.2)
os._exit(3)
"""


def test_shared_memory_of_a_trial_that_crashed_by_itself_is_removed(runner: Any, assignment: Any) -> None:
    """When it has gone nothing shows whose it was: it is looked at while the trial runs."""
    name = Path(f"/dev/shm/nccl-{MINE}-crash")
    try:
        assert failure(runner(), assignment(CRASHED.format(mine=MINE))).kind is FailureKind.CRASH_EXIT
        assert not name.exists()
    finally:
        name.unlink(missing_ok=True)


@contextmanager
def suspended(ready: Path, own: Callable[[], list[int]], seconds: float | None) -> Generator[list[int]]:
    """Stop processes as soon as a script has made a file.

    Args:
        ready: The file.
        own: The processes, once the file is there.
        seconds: After which they go on; None: never.

    Yields:
        Their pids, known once they are stopped.
    """
    stopped: list[int] = []

    def suspend() -> None:
        wait_for(ready.exists)
        stopped.extend(own())
        process_tree.send(stopped, signal.SIGSTOP)
        if seconds is not None:
            time.sleep(seconds)
            process_tree.send(stopped, signal.SIGCONT)

    thread = threading.Thread(target=suspend)
    thread.start()
    yield stopped
    thread.join()


def roomy_limit_s(made: Any, assignment_of: Any) -> float:
    """Return three times what such a trial takes on this machine now, so that load alone never ends it."""
    begun = time.monotonic()
    outcome = only(made, assignment_of).outcome
    assert isinstance(outcome, Measurement), outcome
    return 2.0 + 3.0 * (time.monotonic() - begun)


def test_a_job_that_was_suspended_is_no_hang(
    runner: Any, assignment: Any, tmp_path: Path, crippled_guard: Any
) -> None:
    """Guard and script are stopped together, for longer than the trial may last."""
    limit_s = roomy_limit_s(
        runner(isolation="redirect"), assignment("time.sleep(0.6); good()", uid=f"t0001-{MINE}")
    )
    crippled_guard(("AWAY_S = 5.0", "AWAY_S = 0.7"))
    uid = f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    text = f"""Path({str(ready)!r}).touch(); seen = time.monotonic()
while (at := time.monotonic()) - seen < {limit_s / 2}: seen = at; time.sleep(0.02)
exact()"""
    own = lambda: process_tree.marked(uid, process_tree.GUARD_VARIABLE) + process_tree.marked(uid)  # noqa: E731
    with suspended(ready, own, limit_s + 0.5) as stopped:
        outcome = only(runner(isolation="redirect"), assignment(text, deadline_s=limit_s)).outcome
    assert len(stopped) >= 3
    assert isinstance(outcome, Measurement), outcome


def test_time_in_which_a_trial_was_stopped_is_neither_training_nor_a_reason_to_end_it(
    runner: Any, assignment: Any
) -> None:
    """The script alone is stopped, for as long as it may last in all."""
    uid = f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    text = """step(); begin = now()
for n in range(120):
    time.sleep(0.02); step()
    if n == 40: Path({!r}).touch()
finish(begin)"""
    limit_s = roomy_limit_s(
        runner(isolation="redirect"), assignment(text.format(os.devnull), uid=f"t0001-{MINE}")
    )
    requested = assignment(text.format(str(ready)), deadline_s=limit_s)
    with suspended(ready, lambda: process_tree.marked(uid), limit_s):
        outcome = only(runner(isolation="redirect"), replace(requested, patience_s=4.0 * limit_s)).outcome
    assert isinstance(outcome, Measurement), outcome
    assert "stopped" in outcome.contamination.flags
    assert outcome.window_s > limit_s
    assert outcome.throughput.value > 2 * 4 * outcome.steps / outcome.window_s, (
        "without the time it stood still"
    )


@pytest.mark.parametrize(("steps", "step_s"), [(100, 0.03), (2, 1.0)], ids=["many steps", "hardly a step"])
def test_a_stopped_job_is_measured_without_the_stop_or_measured_again(
    runner: Any, assignment: Any, steps: int, step_s: float
) -> None:
    """Guard and script are stopped together inside the window, as a scheduler does with a whole job."""
    uid = f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    text = f"""step(); time.sleep(1.0); begin = now()
for n in range({steps}):
    time.sleep({step_s}); step()
    if n == {steps} // 4: Path({str(ready)!r}).touch()
finish(begin)"""
    own = lambda: process_tree.marked(uid, process_tree.GUARD_VARIABLE) + process_tree.marked(uid)  # noqa: E731
    with suspended(ready, own, 4.0) as stopped:
        outcome = only(runner(isolation="redirect"), assignment(text)).outcome
    assert len(stopped) >= 3
    if steps > 2:
        assert isinstance(outcome, Measurement), outcome
        assert "stopped" in outcome.contamination.flags
        assert outcome.extra[STOPPED_S] > 3.5
        trained_s = outcome.window_s - outcome.extra[STOPPED_S]
        assert outcome.throughput.value == pytest.approx(4 * outcome.steps / trained_s, rel=0.25)
    else:
        assert isinstance(outcome, Failure), outcome
        assert outcome.kind is FailureKind.CONTENDED


def test_a_trial_that_stays_stopped_is_ended_when_its_patience_is_used_up(
    runner: Any, assignment: Any
) -> None:
    uid = f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    text = f"Path({str(ready)!r}).touch(); time.sleep(60)"
    requested = replace(assignment(text, deadline_s=2.0), patience_s=1.5)
    with suspended(ready, lambda: process_tree.marked(uid), None):
        ended = only(runner(isolation="redirect"), requested)
    assert isinstance(ended.outcome, Failure)
    assert ended.outcome.kind is FailureKind.TIMEOUT_TOTAL
    assert ended.seconds >= 3.5


def test_a_guard_that_breaks_leaves_nothing(runner: Any, assignment: Any, crippled_guard: Any) -> None:
    """Its keeper ends what it owned also where no mark and no control group would find it."""
    token, uid = f"broken-{MINE}", f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    broken = f"if os.path.exists({str(ready)!r}): raise RuntimeError('broken')"
    crippled_guard(
        ("self._note_shared()\n", broken + "\n"),
        ("folder = process_tree.make_group(self.uid)", 'folder = ""'),
    )
    made = assignment(UNMARKED.format(ready=str(ready), token=token), uid=uid)
    try:
        assert failure(runner(isolation="redirect"), made).kind is FailureKind.INFRA_LOST
        assert carrying(token) == []
    finally:
        process_tree.send(carrying(token), signal.SIGKILL)


def test_a_notice_to_the_whole_job_ends_neither_guard_nor_keeper(runner: Any, assignment: Any) -> None:
    """As Slurm sends it ahead of the end; the script has it as it was."""
    uid = f"t0000-{MINE}"
    ready = temporary_folder(uid) / "ready"
    noticed: list[int] = []

    def notice() -> None:
        wait_for(ready.exists)
        noticed.extend(process_tree.marked(uid, process_tree.GUARD_VARIABLE))
        process_tree.send(noticed, signal.SIGUSR1)
        process_tree.send(noticed, signal.SIGUSR2)

    thread = threading.Thread(target=notice)
    thread.start()
    text = (
        "import signal; assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL\n"
        f"Path({str(ready)!r}).touch(); time.sleep(0.6); good()"
    )
    outcome = only(runner(isolation="redirect"), assignment(text)).outcome
    thread.join()
    assert len(noticed) == 2
    assert isinstance(outcome, Measurement), outcome


def test_a_guard_whose_launcher_has_died_removes_what_nobody_reads_any_more(
    runner: Any, assignment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan and layers; and secrets out of what the trial has reported."""
    started = assignment("print(sys.argv, flush=True); Path(plan.trial_dir, 'ready').touch(); time.sleep(60)")
    more = {
        "argv": ("--hf-token", "CANARY-option"),
        "command": (*started.launch.command, "--hf-token", "CANARY-option"),
    }
    mine = replace(started, launch=replace(started.launch, **more))
    launcher = runner()
    folder = tmp_path / "study" / "trials" / mine.uid

    def die() -> None:
        wait_for((folder / "ready").exists)
        running = launcher._running
        os.close(running._life_fd)
        running._life_fd = os.open(os.devnull, os.O_RDONLY)

    # What it would have done itself.
    monkeypatch.setattr(process, "hide_secrets", lambda *_: None)
    monkeypatch.setattr(process, "remove_scratch", lambda *_: None)
    thread = threading.Thread(target=die)
    thread.start()
    found = failure(launcher, mine)
    thread.join()
    assert "its launcher died" in found.message
    assert {p.name for p in folder.iterdir()} == {
        "events.jsonl",
        "result.json",
        "stdout.log",
        "stderr.log",
        "guard.log",
        "ready",
    }
    assert "'<redacted>'" in (folder / "stdout.log").read_text()


def test_what_a_launcher_did_not_live_to_do_is_done_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / f"t0009-{MINE}"
    for place in (folder / "upper" / "1", folder / "work" / "work", temporary_folder(folder.name)):
        place.mkdir(parents=True)
    (folder / "work" / "work").chmod(0)
    (folder / "plan.json").write_text(json.dumps({"argv": ["--hf-token", "CANARY-option"]}))
    (folder / "stdout.log").write_text("CANARY-option CANARY-variable\n")
    orphans.clear_up(folder, (), {"MY_TOKEN": "CANARY-variable"})
    assert not temporary_folder(folder.name).exists()
    assert {p.name for p in folder.iterdir()} == {"plan.json", "stdout.log"}
    assert json.loads((folder / "plan.json").read_text()) == {"argv": ["--hf-token", "<redacted>"]}
    assert (folder / "stdout.log").read_text() == "<redacted> <redacted:MY_TOKEN>\n"
    orphans.clear_up(tmp_path / "trials" / "t0010-never", (), {})


def test_the_environment_is_the_launch_and_ours_and_nothing_else(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    launch = assignment("print(sorted(os.environ)); sys.exit(1)")
    failure(runner(), launch)
    log = (tmp_path / "study" / "trials" / f"t0000-{MINE}" / "stdout.log").read_text()
    ours = {"AUTOTUNE_PLAN", "AUTOTUNE_TRIAL", "TMPDIR"}
    cache = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"}
    assert set(eval(log)) - {"LC_CTYPE"} == ours | cache | {"PATH", "HOME"}


def test_two_segments_keep_what_was_closed(runner: Any, assignment: Any) -> None:
    one = assignment("step(); b = now(); time.sleep(.01); step(); close(b); sys.exit(5)")
    two = replace(one, segments=(*one.segments, replace(one.segments[0], trial=1)))
    first, second = runner().run(two)
    assert isinstance(first.outcome, Measurement)
    assert isinstance(second.outcome, Failure)
    assert second.outcome.kind is FailureKind.CRASH_EXIT


HOSTILE = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
if os.fork() == 0:
    while True: time.sleep(1)
Path({ready!r}).write_text("ready")
while True: time.sleep(1)
"""

PARENT = """
import sys, pickle
sys.path.insert(0, {root!r})
from pathlib import Path
from autotune.launch.process import LocalRunner
assignment = pickle.loads(Path({pickled!r}).read_bytes())
runner = LocalRunner(study_dir=Path({study!r}), command=lambda p: (p, "-S", {stub!r}), space_floor_bytes=1,
                     isolation={isolation!r}, grace_s=0.2)
list(runner.run(assignment))
"""


@pytest.mark.parametrize(
    "victim", ["parent", "keeper by TERM", "keeper by KILL", "guard by TERM", "guard by KILL", "script"]
)
def test_nothing_survives_whoever_is_killed(
    assignment: Any, tmp_path: Path, stub: str, victim: str, runner: Any
) -> None:
    import pickle

    temporary = temporary_folder(f"t0000-{MINE}")
    enclosure.remove(temporary)  # a killed runner leaves it, the next one clears it
    ready = tmp_path / "study" / "trials" / f"t0000-{MINE}" / "ready"
    made = assignment(HOSTILE.format(ready=str(ready)))
    pickled = tmp_path / "assignment"
    pickled.write_bytes(pickle.dumps(made))
    text = PARENT.format(
        root=str(Path(__file__).resolve().parents[2]),
        pickled=str(pickled),
        study=str(tmp_path / "study"),
        stub=stub,
        isolation=runner().isolation,
    )
    parent = subprocess.Popen([sys.executable, "-c", text])
    try:
        wait_for(ready.exists)
        keeper, guard = (p for p in process_tree.descendants(parent.pid) if b"guard.py" in _command(p))
        wait_for(lambda: len(process_tree.marked(made.uid)) >= 3)
        marked = process_tree.marked(made.uid)
        target, number = {
            "parent": (parent.pid, signal.SIGKILL),
            "keeper by TERM": (keeper, signal.SIGTERM),
            "keeper by KILL": (keeper, signal.SIGKILL),
            "guard by TERM": (guard, signal.SIGTERM),
            "guard by KILL": (guard, signal.SIGKILL),
            "script": (process_tree.descendants(guard)[0], signal.SIGKILL),
        }[victim]
        os.kill(target, number)
        wait_for(lambda: not process_tree.marked(made.uid))
        wait_for(lambda: all(process_tree.is_zombie(p) for p in marked))
        wait_for(lambda: process_tree.is_zombie(guard) and process_tree.is_zombie(keeper))
        if victim != "guard by KILL":
            folder = tmp_path / "study" / "trials" / made.uid
            verdict = json.loads((folder / "result.json").read_bytes())
            assert verdict["survivors"] == []
        if victim == "parent":
            wait_for(lambda: not temporary.exists())
    finally:
        parent.kill()
        parent.wait()
        process_tree.end_marked(made.uid)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(condition: Any, bound_s: float = 60.0) -> None:
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)


UNMARKED = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(300)", {token!r}], {{}})
    os._exit(0)
Path({ready!r}).write_text("ready")
while True: time.sleep(1)
"""


def carrying(token: str) -> list[int]:
    return [
        p
        for p in process_tree.all_pids()
        if token.encode() in _command(p).split(b"\0") and not process_tree.is_zombie(p)
    ]


def can_group() -> bool:
    folder = process_tree.make_group(f"probe-{MINE}")
    process_tree.end_group(folder)
    return bool(folder)


def test_no_group_is_made_where_the_mount_shows_groups_of_another_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of our own group names somebody else's there: we are not in it."""
    real = process_tree._read
    monkeypatch.setattr(
        process_tree, "_read", lambda path: b"0::/ours\n" if path == "/proc/self/cgroup" else real(path)
    )
    monkeypatch.setattr(process_tree, "GROUP_ROOTS", (str(tmp_path),))
    monkeypatch.setattr(process_tree, "OLD_GROUP_ROOTS", {})
    ours = tmp_path / "ours"
    ours.mkdir()
    for text in ("1\n7\n", ""):
        (ours / "cgroup.procs").write_text(text)
        assert process_tree.groups("t1") == []
        assert process_tree.make_group("t1") == ""
    (ours / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    assert process_tree.groups("t1") == [f"{ours}/autotune-t1"]


def test_a_process_that_nothing_kills_is_waited_for_once_and_not_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process inside the kernel cannot be had here: in its place a tree that never gets smaller."""
    spent = [0.0]

    def wait(seconds: float) -> None:
        spent[0] += seconds

    one = object.__new__(guard.Guard)
    one.spec, one.uid, one.folder, one.group = {"grace_s": 5.0, "reap_s": 10.0}, "t1", str(tmp_path), "g"
    one.why, one.status, one.script, one.shared_before = "timeout_total", None, 0, set()
    one.alone, one.shared_used = True, set()
    one.samples, one.owned = guard.Samples(), guard.owned_resources.Owned(str(tmp_path))
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: spent[0]))
    monkeypatch.setattr(one, "_reap", lambda: True)
    monkeypatch.setattr(one, "_tree", list)
    monkeypatch.setattr(one, "_dump_stacks", lambda: wait(guard.DUMP_S))
    monkeypatch.setattr(one, "_wait", lambda seconds, life: wait(seconds))
    monkeypatch.setattr(guard.process_tree, "end_marked", lambda uid, bound_s: wait(bound_s) or [])
    monkeypatch.setattr(guard.process_tree, "end_group", lambda folder, bound_s: wait(bound_s))
    one._end()
    assert 15.0 < spent[0] <= guard.ending_s(5.0, 10.0) - guard.DRAIN_S


@pytest.mark.parametrize("found_by", ["group", "namespace", "record"])
def test_an_unmarked_daemon_that_outlived_all_of_ours_is_ended(
    assignment: Any, tmp_path: Path, stub: str, runner: Any, found_by: str
) -> None:
    """Launcher, keeper and guard are killed at once: nobody's child, no mark, no session."""
    import pickle

    if found_by == "group" and not can_group():
        pytest.skip("no control group can be made here")
    if found_by == "namespace" and runner().isolation != "overlay":
        pytest.skip("this machine lets nobody mount an overlay")
    uid, token = f"t0009-{MINE}", f"unmarked-{MINE}"
    folder = tmp_path / "study" / "trials" / uid
    made = assignment(UNMARKED.format(ready=str(folder / "ready"), token=token), uid=uid)
    pickled = tmp_path / "assignment"
    pickled.write_bytes(pickle.dumps(made))
    text = PARENT.format(
        root=str(Path(__file__).resolve().parents[2]),
        pickled=str(pickled),
        study=str(tmp_path / "study"),
        stub=stub,
        isolation="overlay" if found_by == "namespace" else "redirect",
    )
    parent = subprocess.Popen([sys.executable, "-c", text])
    place = ""
    try:
        wait_for((folder / "ready").exists)
        wait_for(lambda: carrying(token))
        (daemon,) = carrying(token)
        wait_for(lambda: f"[{daemon}, " in (folder / RECORD).read_text())
        ours = [p for p in process_tree.descendants(parent.pid) if b"guard.py" in _command(p)]
        # Stopped first: on a busy machine the second would otherwise see the first one die.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (*ours, parent.pid):
                os.kill(pid, number)
        wait_for(lambda: all(process_tree.is_zombie(p) for p in ours))
        # What carries it is ended by the kernel as its parent ends, a moment later.
        wait_for(lambda: process_tree.marked(uid) == [])
        if (folder / "group").exists():
            place = (folder / "group").read_text()
        for name, way in (("group", "group"), (RECORD, "record")):
            if way != found_by:
                (folder / name).unlink(missing_ok=True)
        swept = orphans.end_strays(folder)
        assert carrying(token) == []
        assert not (folder / "group").exists()
        assert not (folder / RECORD).exists()
        assert swept.processes == (1 if found_by == "record" else 0)
        if found_by == "group":
            assert not Path(place).exists()
    finally:
        parent.kill()
        parent.wait()
        process_tree.end_group(place)
        orphans.end_strays(folder)
        process_tree.send(carrying(token), signal.SIGKILL)
        enclosure.remove(temporary_folder(uid))


def test_a_record_of_another_boot_or_of_another_process_ends_nothing(tmp_path: Path) -> None:
    """Numbers of processes are used again."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as other:
        start = process_tree.start_ticks(other.pid)
        for boot, claimed in (
            ("another", start),
            (owned_resources.boot_id(), start + 1),
            (owned_resources.boot_id(), 0),
        ):
            record = {"boot": boot, "processes": [[other.pid, claimed]], "objects": []}
            (tmp_path / RECORD).write_text(json.dumps(record))
            assert not orphans.end_strays(tmp_path)
            assert other.poll() is None
        record = {"boot": owned_resources.boot_id(), "processes": [[other.pid, start]], "objects": []}
        (tmp_path / RECORD).write_text(json.dumps(record))
        assert orphans.end_strays(tmp_path) == orphans.Swept(processes=1)
        assert other.wait() == -signal.SIGKILL


SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
memory = libc.shmget(0, 4096, 0o1600)
semaphores = libc.semget(0, 2, 0o1600)
assert memory >= 0 and semaphores >= 0
assert libc.semctl(semaphores, 0, 16, 1) == 0  # SETVAL
Path(plan.trial_dir, "made").write_text(f"{{memory}} {{semaphores}}")
{then}
"""


def of_system_v(folder: Path) -> set[tuple[str, int]]:
    """What a trial has made, as far as it is there now for processes outside of it."""
    memory, semaphores = map(int, (folder / "made").read_text().split())
    return sysv_ipc.own() & {("shm", memory), ("sem", semaphores)}


@pytest.mark.parametrize("isolation", ["redirect", "overlay"])
def test_system_v_objects_go_with_a_trial(
    runner: Any, assignment: Any, tmp_path: Path, isolation: str
) -> None:
    """They outlive every process, and a machine has few semaphores."""
    if isolation == "overlay" and runner().isolation != "overlay":
        pytest.skip("this machine lets nobody mount an overlay")
    ended = only(runner(isolation=isolation), assignment(SYSTEM_V.format(then="good()")))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert of_system_v(tmp_path / "study" / "trials" / f"t0000-{MINE}") == set()


def test_without_a_namespace_system_v_objects_are_removed_by_who_made_them(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    """As for an ordinary user in redirect mode, or who has staged something there: trials may need that."""
    kept = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
    try:
        ended = only(runner(isolation="redirect"), assignment(SYSTEM_V.format(then="good()")))
        assert isinstance(ended.outcome, Measurement), ended.outcome
        assert of_system_v(tmp_path / "study" / "trials" / f"t0000-{MINE}") == set()
        assert ("shm", kept) in sysv_ipc.own(), "it is not the trial's"
    finally:
        sysv_ipc.remove([("shm", kept)])


def test_system_v_objects_of_a_trial_without_a_living_guard_are_removed_by_its_record(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    one, other = libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600)
    try:
        record = {
            "boot": owned_resources.boot_id(),
            "processes": [],
            "objects": [["shm", one], ["sem", other]],
        }
        (tmp_path / RECORD).write_text(json.dumps(record))
        assert orphans.end_strays(tmp_path) == orphans.Swept(objects=2)
        assert not sysv_ipc.own() & {("shm", one), ("sem", other)}
    finally:
        sysv_ipc.remove([("shm", one), ("sem", other)])


def test_memory_that_a_process_has_attached_stays() -> None:
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    one = libc.shmget(0, 4096, 0o1600)
    address = libc.shmat(one, None, 0)
    try:
        assert sysv_ipc.made_by({os.getpid()}, sysv_ipc.own()) >= {("shm", one)}
        assert ("shm", one) not in sysv_ipc.made_by({1}, sysv_ipc.own())
        assert sysv_ipc.remove([("shm", one)]) == []
        assert ("shm", one) in sysv_ipc.own()
    finally:
        libc.shmdt(ctypes.c_void_p(address))
        assert sysv_ipc.remove([("shm", one)]) == [("shm", one)]


def test_no_folder_but_a_trials_group_is_ever_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "t0001-a1-0"
    folder.mkdir()
    other = tmp_path / "somebody-elses"
    other.mkdir()
    (other / "cgroup.kill").touch()
    # By name it could be a group, but it does not lie where groups do.
    pretended = tmp_path / f"autotune-{folder.name}"
    pretended.mkdir()
    (pretended / "cgroup.kill").symlink_to(other / "cgroup.kill")
    for text in (str(other), "", "/", str(pretended)):
        (folder / "group").write_text(text)
        orphans.end_strays(folder)
        assert (other / "cgroup.kill").read_text() == ""
        assert not (folder / "group").exists()
    assert pretended.exists()


def test_a_guard_that_nothing_ends_holds_nobody_up(
    runner: Any, assignment: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process inside the kernel cannot be had here: in its place one that never seems to end."""

    class Endless(subprocess.Popen):  # type: ignore[type-arg]
        def poll(self) -> None:
            super().poll()

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "a wait without a bound"
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Endless)
    for module in (running, orphans):
        monkeypatch.setattr(module, "REAP_S", 0.2)
    for module in (running, nsys):
        monkeypatch.setattr(module, "LINGER_S", 0.1)
    begun = time.monotonic()
    outcome = only(runner(isolation="redirect"), assignment("good()", deadline_s=1.0)).outcome
    assert time.monotonic() - begun < 20
    assert "cannot be ended" in caplog.text
    assert isinstance(outcome, (Measurement, Failure))


def test_a_trial_that_could_not_be_watched_to_its_end_leaves_no_descriptor_open(
    runner: Any, assignment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: object) -> bool:
        raise RuntimeError("something of ours broke")

    monkeypatch.setattr(running.Running, "_read", breaks)
    before = watched_ends()
    with pytest.raises(RuntimeError, match="of ours broke"):
        list(runner(isolation="redirect").run(assignment("good()")))
    assert watched_ends() == before


def watched_ends() -> int:
    """Descriptors of this process by which the end of another one is awaited."""
    return sum(
        "pidfd" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()
    )


def test_a_daemon_of_a_good_trial_is_ended_and_the_measurement_kept(runner: Any, assignment: Any) -> None:
    text = "if os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(1)\ngood()"
    assert isinstance(only(runner(), assignment(text)).outcome, Measurement)


def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    script = tmp_path / "plain.py"
    script.write_text(text)
    monkeypatch.setattr(
        runtime_library, "trial_command", lambda python, folder, options: (python, str(script))
    )
    launch = Launch(
        command=(),
        script=str(script),
        argv=(),
        python=sys.executable,
        cwd=str(tmp_path),
        env={"PATH": os.environ["PATH"]},
        protect=False,
        measure=False,
    )
    return run_plain(launch, tmp_path / "plan")


def test_apply_hands_on_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os, sys, json; p = json.load(open(os.environ['AUTOTUNE_PLAN'])); sys.exit(7 if not p['measure'] else 1)"
    assert plain(tmp_path, monkeypatch, text) == 7


def test_apply_names_a_signal_by_128_and_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain(tmp_path, monkeypatch, "import os; os.kill(os.getpid(), 15)") == 143


def test_apply_passes_signals_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(20)"
    )
    assert plain(tmp_path, monkeypatch, text) == 9


class TestContract(RunnerContract):
    @pytest.fixture(autouse=True)
    def parts(self, runner: Any, assignment: Any) -> None:
        self.runner, self.assignment, self.count = runner, assignment, 0

    def make_runner(self) -> LocalRunner:
        return self.runner()

    def made(self, text: str) -> Assignment:
        self.count += 1
        return self.assignment(text, uid=f"t{self.count:04}-{MINE}")

    def make_good(self) -> Assignment:
        return self.made("exact()")

    def make_failing(self) -> Assignment:
        return self.made("sys.exit(1)")


@pytest.mark.torch
def test_a_trial_runs_in_the_real_bootstrap_and_is_measured(
    assignment: Any, tmp_path: Path, user: Path
) -> None:
    script = (Path(__file__).parent / "data" / "tiny.py").read_text()
    made = assignment(script, min_window_s=0.3, max_window_s=1.0)
    launcher = LocalRunner(study_dir=tmp_path / "study", space_floor_bytes=1)
    (ended,) = launcher.run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert ended.outcome.throughput.unit == "samples/s"
    assert ended.facts is not None
    assert ended.facts.loader is not None
    assert ended.facts.loader.site == "train.py:5"
    assert os.listdir(user) == ["train.py"]
