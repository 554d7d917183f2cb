"""A whole search of a made-up script, resumed from its journal by the real code, with a fake runner.

Each life of its driver is a forked child, so that it can be killed. What is replaced in that child: the
runner (a cost model in place of processes), the clock (simulated, so that the same search takes the same
course) and, where nobody asks for it, MLflow.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.clock import Clock, SimulatedClock
from autotune.driver import tune
from autotune.driver.loop.deadline_watchdog import HardWall
from autotune.driver.sinks import sync
from autotune.errors import AutotuneError
from autotune.inspection.script import script_facts
from autotune.launch.fake import COMPUTE_BOUND, FakeRunner
from autotune.launch.runner import Runner, TrialResult
from autotune.model.facts import Facts, HostFacts
from autotune.model.study import Budget, SpaceRequest, StudySpec
from autotune.model.trial import Assignment
from autotune.model.wire import to_wire
from autotune.store.journal import Entry, Journal
from faultbed.common import Child, until, users_tree

STUDY_ID = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
KNOBS = {
    "precision": ("fp32", "bf16"),
    "channels_last": (False, True),
    "num_workers": (0, 2, 4),
}
BUDGET_S = 900.0
LIFE_S = 600.0
"""Bound of one life of a driver on a busy machine; a quiet one needs a few seconds."""
WORLD = replace(
    COMPUTE_BOUND,
    load_s=0.0004,
    crashes=frozenset({("num_workers", 4)}),
)
"""With a crash in it, so that failures and repeats are journaled too; what wins, wins clearly."""


def begin(
    folder: Path,
    *,
    seed: int = 0,
    budget_s: float = BUDGET_S,
    trials: int | None = None,
    tracking_uri: str = "",
    driver: str = "inline",
    python: str = sys.executable,
    address: str = "",
) -> Path:
    """The directory of a study about which nothing is known but the script and the machine."""
    script = users_tree(folder) / "train.py"
    home = folder / "study"
    spec = StudySpec(
        study_id=STUDY_ID,
        label="train",
        script=str(script),
        args=(),
        cwd=str(script.parent),
        python=python,
        space=SpaceRequest(name="faults", knobs=KNOBS),
        budget=Budget(seconds=budget_s, trials=trials),
        seed=seed,
        driver=driver,
        ray_address=address,
        tracking_uri=tracking_uri,
    )
    host = HostFacts(
        cpus=8,
        physical_cores=4,
        memory_bytes=2**35,
        cpu_flags=("avx512_bf16", "amx_bf16"),
        isolation="redirect",
    )
    facts = Facts(host=host, script=script_facts(str(script)))
    notes(home).mkdir(exist_ok=True)
    with Journal.create(home, ballast_bytes=0, clock=SimulatedClock()) as journal:
        opened = {"spec": spec, "wall_s": 1_700_000_000.0, "host": "", "pid": 1, "version": "0"}
        journal.append("opened", f"opened/{journal.epoch}", to_wire(opened))
        journal.append("inspected", "inspected/1", to_wire({"facts": facts}))
    return home


def notes(home: Path) -> Path:
    """Where the lives of a driver write down what the journal must hold; beside the study."""
    return home.parent / "notes"


class Steady(Runner):
    """The cost model, whose noise follows from a trial's number, and a list of what was begun.

    Args:
        began: Gets one line per trial begun.
    """

    def __init__(self, inner: Runner, began: Path) -> None:
        self._inner = inner
        self._began = began

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        write_line(self._began, str(assignment.trial))
        # The world draws another noise for every attempt, and a killed driver leaves attempts behind.
        yield from self._inner.run(replace(assignment, uid=f"t{assignment.trial}", attempt=1))

    def stop(self) -> None:
        self._inner.stop()


class Nowhere:
    """A tracker that takes everything."""

    def open(self) -> None:
        pass

    def send(self, *_: object) -> None:
        pass

    def links(self) -> dict[str, str]:
        return {}


def write_line(path: Path, text: str) -> None:
    """Append by one write: it is there also when this process is killed right after."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(file, text.encode() + b"\n")
    os.close(file)


def lines(path: Path) -> list[str]:
    """What was written so."""
    return path.read_text().split() if path.exists() else []


def lived(
    home: Path,
    *,
    runner: Callable[[Clock, Path], Runner] | None = None,
    sink: Callable[[], Any] | None = Nowhere,
    patches: Sequence[Any] = (),
) -> dict[str, Any]:
    """One life of the driver, in this process: to be called in a child.

    Args:
        home: The study's directory.
        runner: Made from the clock and the path for `Steady`; the cost model where None.
        sink: Makes the tracker; None for the real one.
        patches: Entered around it.

    Returns:
        ``picks``, ``exit``, ``stopped``, ``unsent``; or ``error`` and ``message``.
    """
    # Each life begins right when the one before ended.
    clock = SimulatedClock(wall_s=max(entry.wall_s for entry in entries(home)))
    began = notes(home) / "began"

    def make_runner(**_: object) -> Runner:
        return Steady(FakeRunner(WORLD, clock), began) if runner is None else runner(clock, began)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(tune, "LocalRunner", make_runner))
        # What else runs on this machine must not change the course of a search.
        stack.enter_context(mock.patch.object(tune.LoadCheck, "of_machine", return_value=None))
        if runner is None:
            stack.enter_context(mock.patch.object(tune, "SystemClock", return_value=clock))
            # It counts real seconds, of which a busy machine needs more than the simulated budget has.
            stack.enter_context(mock.patch.object(HardWall, "start", return_value=None))
        if sink is not None:
            stack.enter_context(mock.patch.object(sync, "mlflow_sink", return_value=sink()))
        acknowledged = notes(home) / "acknowledged"
        append = Journal.append

        def append_and_tell(journal: Journal, kind: str, uid: str, *rest: Any, **named: Any) -> int:
            seq = append(journal, kind, uid, *rest, **named)
            write_line(acknowledged, uid)
            return seq

        stack.enter_context(mock.patch.object(Journal, "append", append_and_tell))
        for patch in patches:
            stack.enter_context(patch)
        try:
            end = tune.resume_search(home)
        except AutotuneError as error:
            return {"error": type(error).__name__, "message": error.message}
    return {
        "picks": picks(end.answer),
        "exit": end.exit_code,
        "stopped": end.study.stopped,
        "unsent": end.unsent,
    }


def picks(answer: Any) -> dict[str, str]:
    """The configuration of every pick, as text."""
    if answer is None:
        return {}
    named = {"safe": answer.safe, "best": answer.best, "fastest": answer.fastest}
    return {name: pick.config.canonical() for name, pick in named.items() if pick is not None}


def undisturbed(folder: Path, seed: int) -> dict[str, Any]:
    """How this search ends when nothing happens; found out once per folder."""
    note = folder.parent / f"undisturbed-{seed}.json"
    if not note.exists():
        place = folder.parent / f"undisturbed-{seed}-{os.getpid()}"
        home = begin(place, seed=seed)
        with Child(lambda: lived(home), place / "driver.log") as child:
            child.wait(LIFE_S)
            found = child.answer
        if not found or "picks" not in found:
            message = (
                f"the undisturbed search ended with {found!r}: {(place / 'driver.log').read_text()[-2000:]}"
            )
            raise RuntimeError(message)
        found["trials"] = len(reported(home))
        draft = note.with_name(f"{note.name}.{os.getpid()}")
        draft.write_text(json.dumps(found))
        draft.rename(note)
    return json.loads(note.read_text())


def entries(home: Path) -> list[Entry]:
    """The whole journal, every digest checked."""
    with closing(Journal.read(home)) as journal:
        return list(journal.entries())


def reported(home: Path) -> list[int]:
    """Numbers of the trials that have an outcome."""
    return [int(entry.data["number"]) for entry in entries(home) if entry.kind == "finished"]


def losses(home: Path) -> tuple[int, int]:
    """(acknowledged events that are gone, trials reported or run again after they were reported)."""
    seen = entries(home)
    uids = {entry.uid for entry in seen}
    lost = len(set(lines(notes(home) / "acknowledged")) - uids)
    outcomes = Counter(int(entry.data["number"]) for entry in seen if entry.kind == "finished")
    twice = sum(n - 1 for n in outcomes.values())
    begun = Counter(int(number) for number in lines(notes(home) / "began"))
    started = Counter(int(entry.data["number"]) for entry in seen if entry.kind == "started")
    twice += sum(max(0, n - started[number]) for number, n in begun.items())
    finished: set[int] = set()
    for entry in seen:
        if entry.kind == "finished":
            finished.add(int(entry.data["number"]))
        elif entry.kind in ("proposed", "started"):
            data: Mapping[str, Any] = entry.data
            number = int(data["trial"]["number"] if entry.kind == "proposed" else data["number"])
            twice += number in finished
    return lost, twice


def running(home: Path, number: int, limit_s: float) -> str:
    """The attempt of a trial that hangs (`trials/reported.py`) once it hangs; empty before."""
    found = [""]

    def hangs() -> bool:
        for entry in entries(home):
            if entry.kind == "started" and entry.data["number"] == number:
                found[0] = str(entry.data["uid"])
        return bool(found[0]) and (home / "trials" / found[0] / "ready").exists()

    return found[0] if until(hangs, limit_s) else ""
