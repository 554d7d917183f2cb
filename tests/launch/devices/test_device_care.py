"""Devices are locked, awaited and, after what may have broken them, tried out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import FakeNvml

from autotune.devices.bounded import Bounded
from autotune.devices.common import Device, DeviceSample
from autotune.devices.nvidia import NvidiaDevices
from autotune.launch.devices import device_care
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.device_care import DeviceCare, Held, run_canary
from autotune.launch.devices.load_check import usable_cpus
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.guard import process_tree
from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.runner import NOT_BEGUN
from autotune.model.facts import DeviceFacts, RunFacts
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, FailureKind, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

K = FailureKind
HOLDER = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    device_care._BROKEN.clear()
    yield
    device_care._BROKEN.clear()


@pytest.fixture
def care(tmp_path: Path) -> Callable[..., DeviceCare]:
    def make(nvml: FakeNvml | None = None, **more: Any) -> DeviceCare:
        devices = NvidiaDevices(nvml or FakeNvml(count=1)).devices()
        short = {"folder": tmp_path, "lock_s": 0.2, "free_s": 0.3, "cool_s": 0.3}
        return DeviceCare(lambda _: devices, **{**short, **more})

    return make


def launch(**env: str) -> Launch:
    return Launch(
        command=(sys.executable, "t.py"), script="t.py", argv=(), python=sys.executable, cwd="/", env=env
    )


def hold(care: DeviceCare) -> Held:
    held = care.hold(launch(), stopped=lambda: False)
    assert isinstance(held, Held), held
    return held


def reported(*, cuda: bool) -> ProcessReports:
    device = DeviceFacts(name="x", uuid="GPU-0abc", memory_bytes=1)
    return ProcessReports(facts=RunFacts(devices=(device,) if cuda else ()))


def test_a_machine_without_devices_needs_no_care(tmp_path: Path) -> None:
    care = DeviceCare(lambda _: (), folder=tmp_path)
    held = hold(care)
    assert held.locks == []
    care.release(held, launch(), ProcessReports(), {0: Failure(kind=K.CUDA_FATAL, message="")})
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_another_search_uses_is_waited_for_and_then_contended(
    care: Callable[..., DeviceCare], tmp_path: Path
) -> None:
    path = tmp_path / "autotune-GPU-0abc.lock"
    other = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        begun = time.monotonic()
        found = care().hold(launch(), stopped=lambda: False)
        assert time.monotonic() - begun >= 0.2
        assert isinstance(found, Failure)
        assert (found.kind, found.evidence["device"]) == (K.CONTENDED, "GPU-0abc")
        assert "NVIDIA H200" in found.message
        assert isinstance(care(lock_s=60.0).hold(launch(), stopped=lambda: True), Failure)
    finally:
        other.communicate(b"")
    hold(care()).hand_over()


def test_a_lock_passes_to_the_guard_and_not_to_what_it_starts(
    care: Callable[..., DeviceCare], tmp_path: Path, runner: Any, assignment: Any
) -> None:
    """The script looks at its own descriptors; the lock lives as long as the guard."""
    nvml = FakeNvml(count=1)
    text = "print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    shown = text.replace("os.readlink", "link") + "; good()"
    define = (
        "def link(p):\n    try: return os.readlink(p)\n    except OSError: return ''\nimport subprocess\n"
    )
    busy = f"probe = subprocess.run([sys.executable, '-S', '-c', {PROBE!r}, {str(tmp_path)!r}])\n"
    (ended,) = runner(device_care=care(nvml)).run(assignment(define + busy + shown, protect=False))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    folder = next((tmp_path / "study" / "trials").iterdir())
    out = (folder / "stdout.log").read_text()
    assert "locked" in out
    assert "autotune-GPU" not in out.split("\n", 1)[1]
    hold(care(nvml)).hand_over()


PROBE = """
import fcntl, os, sys
lock = os.open(os.path.join(sys.argv[1], "autotune-GPU-0abc.lock"), os.O_RDONLY)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked", flush=True)
"""


def test_another_users_lock_file_can_be_locked_too(care: Callable[..., DeviceCare], tmp_path: Path) -> None:
    path = tmp_path / "autotune-GPU-0abc.lock"
    path.touch(mode=0o444)
    held = hold(care())
    assert len(held.locks) == 1
    held.hand_over()


def test_where_nothing_can_be_locked_the_trial_runs_all_the_same(tmp_path: Path, care: Any) -> None:
    held = hold(care(folder=tmp_path / "no" / "such" / "folder"))
    assert held.locks == []


def test_memory_that_comes_back_late_is_waited_for(care: Callable[..., DeviceCare]) -> None:
    nvml = FakeNvml(count=1)
    one = care(nvml, free_s=60.0)
    held = hold(one)
    looks: list[int] = []

    class Falling(dict[int, int]):
        def get(self, *_: object) -> int:
            looks.append(0)
            return (1 << 30) + max(0, 4 - len(looks)) * (1 << 30)

    nvml.used = Falling()
    one.release(held, launch(), reported(cuda=True), {})
    assert len(looks) == 4


def test_memory_that_does_not_come_back_holds_nobody_up(
    care: Callable[..., DeviceCare], caplog: pytest.LogCaptureFixture
) -> None:
    nvml = FakeNvml(count=1)
    one = care(nvml)
    held = hold(one)
    nvml.used = {0: 5 << 30}
    one.release(held, launch(), reported(cuda=True), {})
    assert "4.00 GiB of device memory was not released" in caplog.text


def test_a_hot_device_is_given_time_to_cool(care: Callable[..., DeviceCare]) -> None:
    class Cooling(FakeNvml):
        looks = 0

        def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
            self.looks += 1
            return 0x40 if self.looks < 4 else 0x4

    nvml = Cooling(count=1)
    hold(care(nvml, cool_s=60.0)).hand_over()
    assert nvml.looks == 5
    begun = time.monotonic()
    hold(care(FakeNvml(count=1, bits=0x40))).hand_over()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("kind", "cuda", "tried"),
    [
        (K.CUDA_FATAL, True, True),
        (K.TIMEOUT_PROGRESS, True, True),
        (K.OOM_CUDA, True, False),
        (K.CRASH_EXIT, True, False),
        (K.CRASH_SIGNAL, False, False),
    ],
)
def test_only_after_what_may_have_broken_it_a_device_is_tried_out(
    care: Callable[..., DeviceCare], kind: FailureKind, cuda: bool, tried: bool
) -> None:
    tries: list[Launch] = []
    one = care(probe=lambda given: tries.append(given) or "")
    held = hold(one)
    one.release(held, launch(), reported(cuda=cuda), {0: Failure(kind=kind, message="")})
    held.hand_over()
    assert bool(tries) is tried


def test_a_device_that_fails_twice_gets_no_trial_until_it_computes_again(
    care: Callable[..., DeviceCare],
) -> None:
    answers = ["lost", "lost", "still lost", ""]
    one = care(probe=lambda _: answers.pop(0))
    held = hold(one)
    held.hand_over()
    one.release(held, launch(), reported(cuda=True), {0: Failure(kind=K.CUDA_FATAL, message="")})
    refused = care(probe=lambda _: answers.pop(0)).hold(launch(), stopped=lambda: False)
    assert isinstance(refused, Failure)
    assert (refused.kind, "still lost" in refused.message) == (K.INFRA_LOST, True)
    assert refused.evidence == {NOT_BEGUN: 1, "device": "GPU-0abc"}
    hold(one).hand_over()
    assert answers == []


def test_one_failure_that_does_not_repeat_is_none(care: Callable[..., DeviceCare]) -> None:
    answers = ["busy", ""]
    one = care(probe=lambda _: answers.pop(0))
    held = hold(one)
    held.hand_over()
    one.release(held, launch(), reported(cuda=True), {0: Failure(kind=K.CUDA_FATAL, message="")})
    hold(one).hand_over()


def test_a_canary_reports_why_by_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bird = tmp_path / "canary.py"
    monkeypatch.setattr(device_care, "CANARY", bird)
    bird.write_text("import sys; sys.exit(0)")
    assert run_canary(launch(PATH=os.environ["PATH"])) == ""
    bird.write_text("import sys; print('first', file=sys.stderr); sys.exit('the reason')")
    assert run_canary(launch()) == "the reason"
    bird.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(device_care, "CANARY_S", 0.2)
    assert "no answer" in run_canary(launch())


class HangsInATrial(Device):
    """A device that answers until the trial runs, and then no more: as where its firmware has crashed."""

    facts = DeviceFacts(name="x", uuid="GPU-0abc", memory_bytes=1)

    def __init__(self) -> None:
        self.looks = 0
        self.over = threading.Event()

    def sample(self) -> DeviceSample:
        self.looks += 1
        if self.looks > 2:
            self.over.wait(60.0)
        return DeviceSample(used_bytes=self.looks)


def test_a_driver_that_hangs_holds_up_neither_the_watch_over_a_trial_nor_its_end(
    tmp_path: Path, runner: Any, assignment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_care, "Bounded", partial(Bounded, within_s=0.3))
    hangs = HangsInATrial()
    tries: list[Launch] = []
    one = DeviceCare(lambda _: [hangs], folder=tmp_path, probe=lambda given: tries.append(given) or "")
    begun = time.monotonic()
    try:
        made = assignment("step()\ntime.sleep(120)", protect=False, setup_s=0.5)
        (ended,) = runner(device_care=one, progress_floor_s=0.5).run(made)
    finally:
        hangs.over.set()
    assert time.monotonic() - begun < 40
    assert isinstance(ended.outcome, Failure)
    assert ended.outcome.kind is K.TIMEOUT_PROGRESS, ended.outcome
    assert hangs.looks == 3
    assert len(tries) == 1


SINGS = """
import os, sys, time
with open({reported!r}, "w") as file:
    file.write(str(os.getpid()))
time.sleep(120)
"""


def alive(pid: int) -> bool:
    return bool(process_tree.start_ticks(pid)) and not process_tree.is_zombie(pid)


def pid_in(path: Path) -> int:
    until = time.monotonic() + 30
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return int(path.read_text())


def test_a_canary_is_not_waited_for_once_the_search_is_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bird, note = tmp_path / "canary.py", tmp_path / "pid"
    monkeypatch.setattr(device_care, "CANARY", bird)
    bird.write_text(SINGS.format(reported=str(note)))
    begun = time.monotonic()
    assert run_canary(launch(), stopped=lambda: note.is_file() and bool(note.read_text()))
    assert time.monotonic() - begun < 30
    assert not alive(pid_in(note))


def test_a_stopped_search_waits_neither_for_memory_nor_for_a_canary(care: Callable[..., DeviceCare]) -> None:
    tries: list[Launch] = []
    nvml = FakeNvml(count=1)
    one = care(nvml, free_s=3600.0, probe=lambda given: tries.append(given) or "lost")
    held = hold(one)
    nvml.used = {0: 5 << 30}
    hung = {0: Failure(kind=K.TIMEOUT_PROGRESS, message="")}
    one.release(held, launch(), reported(cuda=True), hung, stopped=lambda: True)
    held.hand_over()
    assert tries == []
    assert not device_care._BROKEN


LAUNCHES = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from autotune.model.trial import Launch
from autotune.launch.devices import device_care
from autotune.launch.guard import process_tree as sweep
device_care.CANARY = Path({bird!r})
device_care.run_canary(
    Launch(command=(), script="t.py", argv=(), python=sys.executable, cwd="/", env={{}}), uid={uid!r}
)
"""


def test_a_canary_ends_with_who_waits_for_it_and_carries_the_mark_of_its_trial(tmp_path: Path) -> None:
    """It hangs where the device does, and nobody else would ever end it."""
    bird, note, uid = tmp_path / "canary.py", tmp_path / "pid", f"canary-{os.getpid()}"
    real = device_care.CANARY.read_text()
    (tmp_path / "torch.py").write_text(SINGS.format(reported=str(note)))
    bird.write_text(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{real}")
    text = LAUNCHES.format(root=str(Path(__file__).resolve().parents[3]), bird=str(bird), uid=uid)
    waiting = subprocess.Popen([sys.executable, "-c", text])
    try:
        pid = pid_in(note)
        assert pid in process_tree.marked(uid)
        waiting.kill()
        waiting.wait(30)
        until = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        waiting.kill()
        waiting.wait(30)
        process_tree.end_marked(uid)


def test_devices_stay_locked_until_it_is_known_what_became_of_them(
    care: Callable[..., DeviceCare], tmp_path: Path, runner: Any, assignment: Any
) -> None:
    """Another search's trial would else run beside what is tried out."""
    seen: list[object] = []

    class Watched(DeviceCare):
        def release(self, *given: Any, **more: Any) -> None:
            probe = [sys.executable, "-S", "-c", PROBE, str(tmp_path)]
            seen.append(subprocess.run(probe, capture_output=True, check=True).stdout)
            seen.append(more["uid"])
            super().release(*given, **more)

    devices = NvidiaDevices(FakeNvml(count=1)).devices()
    made = assignment("good()", protect=False)
    (ended,) = runner(device_care=Watched(lambda _: devices, folder=tmp_path, lock_s=0.2)).run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert seen == [b"locked\n", made.uid]
    hold(care()).hand_over()


def test_a_fork_of_the_program_that_searches_does_not_keep_the_devices(
    care: Callable[..., DeviceCare],
) -> None:
    held = hold(care())
    read, write = os.pipe()
    free, free_note = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.write(free_note, b"1")
        os.read(read, 1)
        os._exit(0)
    try:
        assert os.read(free, 1)
        held.hand_over()
        hold(care(lock_s=0.0)).hand_over()
    finally:
        os.close(write)
        for end in (read, free, free_note):
            os.close(end)
        os.waitpid(child, 0)


@pytest.mark.torch
def test_the_canary_itself_finds_no_accelerator_on_the_cpu() -> None:
    assert run_canary(launch(CUDA_VISIBLE_DEVICES="")) == "torch sees no accelerator"


def test_a_device_is_not_waited_for_longer_than_the_trial_may_last(
    care: Callable[..., DeviceCare], tmp_path: Path
) -> None:
    path = tmp_path / "autotune-GPU-0abc.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        found = care(lock_s=300.0).hold(launch(), stopped=lambda: False, within_s=0.3)
    finally:
        os.close(file)
    assert isinstance(found, Failure)
    assert found.kind is K.CONTENDED
    begun = time.monotonic()
    hot = care(FakeNvml(count=1, bits=0x40), cool_s=300.0).hold(launch(), stopped=lambda: False, within_s=0.3)
    assert isinstance(hot, Held)
    hot.hand_over()
    assert time.monotonic() - begun < 60


def machine_claim(folder: Path, study: str) -> MachineLock:
    on = Resources(cpus=frozenset(usable_cpus()))
    return MachineLock(ClaimRequest(study_id=study, label=study), on, folder=folder)


def test_on_a_cluster_a_trial_claims_its_node_and_waits_for_another_search_there(tmp_path: Path) -> None:
    other = machine_claim(tmp_path, "theirs")
    other.ahead()
    other.begin()
    requested = ClaimRequest(study_id="ours", label="ours", wait_s=0.2)
    care = DeviceCare(lambda _: (), folder=tmp_path, request=requested)
    begun = time.monotonic()
    refused = care.hold(launch(), stopped=lambda: False)
    assert time.monotonic() - begun >= 0.2
    assert isinstance(refused, Failure)
    assert refused.kind is K.CONTENDED
    assert refused.message.startswith("study theirs of ")
    assert "has used the same CPUs since" in refused.message
    other.release()
    held, beside = hold(care), hold(care)
    assert len(held.descriptors) == 1, "its guard holds it as well"
    assert beside.notes == (), "trials of one search run beside each other"
    for one in (held, beside):
        one.hand_over()
    assert other.ahead() is None


def test_a_trial_that_shares_its_node_begins_and_notes_the_other_search(tmp_path: Path) -> None:
    other = machine_claim(tmp_path, "theirs")
    other.ahead()
    requested = ClaimRequest(study_id="ours", label="ours", share=True)
    held = hold(DeviceCare(lambda _: (), folder=tmp_path, request=requested))
    (note,) = held.notes
    assert note.startswith("measured beside another search: study theirs of ")
    held.hand_over()
    other.release()


def test_a_note_of_a_shared_node_reaches_the_outcome(tmp_path: Path, runner: Any, assignment: Any) -> None:
    other = machine_claim(tmp_path, "theirs")
    other.ahead()
    requested = ClaimRequest(study_id="ours", label="ours", share=True)
    care = DeviceCare(lambda _: (), folder=tmp_path, request=requested)
    (ended,) = runner(device_care=care).run(assignment("good()", protect=False))
    other.release()
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert any(note.startswith("measured beside another search") for note in ended.notes)


def test_a_broken_device_keeps_a_trial_waiting_and_takes_it_once_it_computes(
    care: Callable[..., DeviceCare], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing at once it would take every trial from the devices that work, and always be free again."""
    monkeypatch.setattr(device_care, "RETRY_S", 0.2)
    answers = ["lost", "lost", "lost", ""]
    one = care(lock_s=60.0, probe=lambda _: answers.pop(0))
    held = hold(one)
    held.hand_over()
    one.release(held, launch(), reported(cuda=True), {0: Failure(kind=K.CUDA_FATAL, message="")})
    begun = time.monotonic()
    hold(one).hand_over()
    assert time.monotonic() - begun >= 0.2
    assert answers == []
    device_care._BROKEN.add("GPU-0abc")
    still = care(lock_s=0.3, probe=lambda _: "lost")
    begun = time.monotonic()
    assert isinstance(still.hold(launch(), stopped=lambda: False), Failure)
    assert time.monotonic() - begun >= 0.3
    begun = time.monotonic()
    gone = care(lock_s=60.0, probe=lambda _: "lost").hold(launch(), stopped=lambda: True)
    assert isinstance(gone, Failure)
    assert time.monotonic() - begun < 30


def test_what_others_put_in_place_of_a_lock_holds_nobody_up_and_leads_nowhere(
    care: Callable[..., DeviceCare], tmp_path: Path
) -> None:
    path = tmp_path / "autotune-GPU-0abc.lock"
    os.mkfifo(path)
    hold(care()).hand_over()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    held = hold(care())
    assert held.locks == []
    assert not (tmp_path / "elsewhere").exists()
