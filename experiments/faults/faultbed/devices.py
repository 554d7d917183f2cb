"""Accelerators that two searches want, and some that stop computing; the devices and their canary are fakes.

The locks, the waiting, the guard that holds them and the quarantine are the product's own.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.devices.common import Device, DeviceSample
from autotune.launch.devices import device_care
from autotune.launch.devices.device_care import DeviceCare, Held
from autotune.launch.process import LocalRunner
from autotune.launch.result.process_reports import ProcessReports
from autotune.model import wire
from autotune.model.facts import DeviceFacts, RunFacts
from autotune.model.trial import Failure, FailureKind, Launch
from autotune.protocol.events import Closed, Hello
from autotune.protocol.lines import Reader
from faultbed.common import TRIALS, Case, Child, Count, assignment, dice, end_all, users_tree
from faultbed.search import WORLD

NAME = "devices"
TITLE = "devices wanted by two, or broken (fakes)"
EACH = 25
LASTS_S = "0.3"
DAMAGES = 100
LIMIT_S = 300.0


class FakeDevice(Device):
    """One that is always idle."""

    facts = DeviceFacts(name="fake", uuid="GPU-faults", memory_bytes=1 << 34)

    def sample(self) -> DeviceSample:
        return DeviceSample()


def cases() -> list[Case]:
    """Two searches on one device, twice fifty trials; and a hundred damages."""
    return [
        *({"key": f"shared/{n}", "what": "shared", "trials": EACH} for n in range(2)),
        {"key": "quarantine", "what": "quarantine", "damages": DAMAGES},
    ]


def sample() -> list[Case]:
    """Some of it."""
    return [
        {"key": "shared", "what": "shared", "trials": 4},
        {"key": "quarantine", "what": "quarantine", "damages": DAMAGES},
    ]


def run(case: Case, folder: Path) -> Count:
    """One of the two."""
    return _shared(case, folder) if case["what"] == "shared" else _quarantine(case)


def _shared(case: Case, folder: Path) -> Count:
    """Two drivers at once; no two of their trials may have run at the same time."""
    project = users_tree(folder)
    root = Path(__file__).resolve().parents[3]
    command = (sys.executable, "-S", str(TRIALS / "reported.py"), str(root), wire.dumps(WORLD), "1", LASTS_S)
    locks, trials = folder / "locks", int(case["trials"])
    locks.mkdir()

    def search(name: str) -> list[tuple[float, float]]:
        care = DeviceCare(lambda _: (FakeDevice(),), folder=locks)
        runner = LocalRunner(
            study_dir=folder / name,
            isolation="redirect",
            command=lambda _: command,
            space_floor_bytes=1,
            device_care=care,
            witness=lambda made, *_: spans.append(_span(folder / name / "trials" / made.uid)),
        )
        spans: list[tuple[float, float]] = []
        for n in range(trials):
            uid = f"t{n:04d}-a1-{dice(NAME, case['key'], name, n).randrange(16**6):06x}"
            try:
                (ended,) = runner.run(assignment(project, uid))
            finally:
                end_all(uid)
            if not hasattr(ended.outcome, "throughput"):
                message = f"trial {n}: {ended.outcome}"
                raise RuntimeError(message)
        return spans

    count = Count(injected=2 * trials)
    begun = time.monotonic()
    with (
        Child(lambda: search("one"), folder / "one.log") as one,
        Child(lambda: search("two"), folder / "two.log") as two,
    ):
        if not (one.wait(LIMIT_S) and two.wait(LIMIT_S) and one.answer and two.answer):
            message = "".join((folder / name).read_text()[-300:] for name in ("one.log", "two.log"))
            count.notes.append(f"a search did not end well: {message}")
            return count
        spans = sorted(map(tuple, [*one.answer, *two.answer]))
    count.seconds = time.monotonic() - begun
    count.duplicated = sum(after[0] < before[1] for before, after in itertools.pairwise(spans))
    count.lost = 2 * trials - len(spans)
    if count.duplicated:
        count.notes.append(f"{count.duplicated} trials ran while another one had the device")
    count.survived = 0 if count.notes or count.lost else 2 * trials
    return count


def _span(trial: Path) -> tuple[float, float]:
    """From the trial's own first word to its last, by the clock that all processes share."""
    reported = list(Reader(trial / "events.jsonl", trial.name).read())
    begins = next(event.t_ns for event in reported if isinstance(event, Hello))
    if not any(isinstance(event, Closed) for event in reported):
        raise RuntimeError(f"{trial.name} has measured nothing")
    return begins / 1e9, (trial / "events.jsonl").stat().st_mtime - time.time() + time.monotonic()


def _quarantine(case: Case) -> Count:
    """After what may have broken it a device is tried out twice, and not used again before it computes."""
    count = Count(injected=int(case["damages"]))
    launch = Launch(command=(), script="t.py", argv=(), python=sys.executable, cwd="/", env={})
    reported = ProcessReports(facts=RunFacts(devices=(FakeDevice.facts,)))
    kinds = (FailureKind.CUDA_FATAL, FailureKind.CRASH_SIGNAL, FailureKind.TIMEOUT_PROGRESS)
    with tempfile.TemporaryDirectory() as locks:
        for n in range(count.injected):
            draw = dice(NAME, case["key"], n)
            answers: list[str] = [draw.choice(("", "it is gone")) for _ in range(12)]
            requested: list[str] = []

            def probe(_: Any, answers: Sequence[str] = answers, requested: list[str] = requested) -> str:
                requested.append(answers[len(requested)])
                return requested[-1]

            care = DeviceCare(
                lambda _: (FakeDevice(),), folder=Path(locks), lock_s=0.0, free_s=0.0, probe=probe
            )
            outcome = {0: Failure(kind=draw.choice(kinds), message="")}
            problem = _damaged(care, launch, reported, outcome, requested)
            device_care._BROKEN.clear()  # noqa: SLF001 (the next one is another device)
            if problem:
                count.notes.append(f"damage {n}: {problem}")
            else:
                count.survived += 1
    return count


def _damaged(
    care: DeviceCare, launch: Launch, reported: ProcessReports, outcome: Any, requested: list[str]
) -> str:
    """What went wrong, or empty."""
    held = care.hold(launch, stopped=lambda: False)
    if not isinstance(held, Held):
        return "a whole device was refused"
    held.hand_over()
    care.release(held, launch, reported, outcome)
    tries = list(requested)
    if "" not in tries and len(tries) != device_care.CANARIES:
        return f"it was tried out {len(tries)} times"
    broken = "" not in tries
    while True:
        before = len(requested)
        again = care.hold(launch, stopped=lambda: False)
        looked = requested[before:]
        if isinstance(again, Held):
            again.hand_over()
            right = looked == [""] if broken else not looked
            return "" if right else f"it was given after {looked}"
        if not broken or looked == [""] or again.kind is not FailureKind.INFRA_LOST:
            return f"it was refused after {looked}"
        if len(requested) > 10:
            return ""
