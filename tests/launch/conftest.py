"""Tiny trials without torch: a script that reports its own events, run by the real launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import account as accounts
import pytest
from crippled import crippling

from autotune.launch.process import LocalRunner
from autotune.model.config import Config
from autotune.model.trial import Assignment, Fidelity, Launch, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINE = f"a1-{os.getpid() % 2**24:06x}"
"""Processes of a trial are found by its name: two runs of these tests must not end each other's."""

STUB = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from autotune.model import wire
from autotune.model.facts import RunFacts, LoaderFacts
from autotune.model.measurement import LossPoint, Reading
from autotune.protocol.events import Broke, Closed, Compiling, Done, Hello, ReadBack as Seen, StepRow, Steps
from autotune.protocol.lines import Writer
from autotune.protocol.plan import load_plan
plan = load_plan(os.environ)
writer = Writer(Path(plan.events_path), plan.nonce)
now = time.perf_counter_ns
writer.write(Hello(pid=os.getpid(), t_ns=now(), python=sys.version))
if plan.shadow_dir:
    from autotune.trial.entry import file_redirect as shadow
    shadow.install(plan.protected, plan.shadow_dir)
def step(samples=4):
    writer.write(Steps(rows=(StepRow(t_ns=now(), wait_ns=0, samples=samples),)))
def close(begin, trial=0, **more):
    writer.write(Closed(trial=trial, begin_ns=begin, end_ns=now(), ended="limit", steady="steady",
                        first_step_ns=begin, compile_s=0.0, **more))
def finish(begin, **more):
    writer.write(Seen(facts=RunFacts(samples_source="loader")))
    close(begin, **more)
    writer.write(Done(why="measured", steps=3))
    os._exit(0)
def good(**more):
    step(); begin = now()
    for _ in range(3):
        time.sleep(0.01); step()
    finish(begin, **more)
def exact():
    begin = now()
    rows = tuple(StepRow(t_ns=begin + i * 50_000_000, wait_ns=0, samples=4) for i in range(61))
    writer.write(Steps(rows=rows))
    writer.write(Seen(facts=RunFacts(samples_source="loader")))
    writer.write(Closed(trial=0, begin_ns=begin, end_ns=rows[-1].t_ns, ended="limit", steady="steady",
                        first_step_ns=begin, compile_s=0.0))
    writer.write(Done(why="measured", steps=61))
    os._exit(0)
sys.argv = [plan.script, *plan.argv]
exec(compile(Path(plan.script).read_text(), plan.script, "exec"))
"""

FIDELITY = Fidelity(
    min_window_s=0.01, max_window_s=5, min_steps=3, target_width=0.05, setup_s=20, deadline_s=30
)


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("stub") / "stub.py"
    path.write_text(STUB.format(root=str(Path(__file__).resolve().parents[2])))
    return str(path)


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The user's folder, with a script to be filled in and a file of theirs."""
    folder = tmp_path / "user" / "project"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def assignment(user: Path) -> Callable[..., Assignment]:
    """Makes an assignment that runs this text as the user's script."""

    def make(text: str, *, uid: str = f"t0000-{MINE}", memory: int = 0, **more: Any) -> Assignment:
        script = user / "train.py"
        script.write_text(text)
        fidelity = {k: more.pop(k) for k in list(more) if hasattr(FIDELITY, k)}
        launch: dict[str, Any] = {
            "command": (sys.executable, str(script)),
            "script": str(script),
            "argv": (),
            "python": sys.executable,
            "cwd": str(user),
            "env": {"PATH": os.environ["PATH"], "HOME": str(user.parent)},
            **more,
        }
        values = {k: getattr(FIDELITY, k) for k in FIDELITY.__dataclass_fields__}
        segment = Segment(trial=0, config=Config(), fidelity=Fidelity(**{**values, **fidelity}))
        return Assignment(
            uid=uid,
            study_id="study",
            attempt=1,
            launch=Launch(**launch),
            segments=(segment,),
            memory_limit_bytes=memory,
        )

    return make


@pytest.fixture(scope="session")
def member() -> Iterator[accounts.Account]:
    """An ordinary user of a second group; made once, as that takes a second."""
    with accounts.made() as found:
        yield found


@pytest.fixture
def crippled_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets trials run under a guard of which parts are missing."""
    return crippling(tmp_path, monkeypatch)


@pytest.fixture
def runner(tmp_path: Path, stub: str) -> Callable[..., LocalRunner]:
    """Makes a launcher whose trials are the stub."""

    def make(**more: Any) -> LocalRunner:
        return LocalRunner(
            **{
                "study_dir": tmp_path / "study",
                "progress_floor_s": 30.0,
                "command": lambda python: (python, "-S", stub),
                "space_floor_bytes": 1,
                "grace_s": 0.5,
                **more,
            }
        )

    return make
