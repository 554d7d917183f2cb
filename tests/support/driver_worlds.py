"""The wiring of a search over worlds of `autotune.launch.fake`, without torch and without MLflow.

Either a `FakeRunner` runs them, or real processes do: `stub_python` makes an interpreter that, in
place of a training script, reports the events of one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autotune.clock import Clock
from autotune.driver.loop.planner import Planner
from autotune.driver.loop.session import Session
from autotune.knobs.registry import builtin
from autotune.launch.fake import COMPUTE_BOUND, FAILS_IN_BASELINE, World
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.wire import to_wire
from autotune.search.stages import Staged
from autotune.store.journal import Journal

STUDY_ID = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
WORLDS: Mapping[str, World] = {
    "good": COMPUTE_BOUND,
    "crashes_on_bf16": replace(
        COMPUTE_BOUND, name="crashes_on_bf16", crashes=frozenset({("precision", "bf16")})
    ),
    "fails": FAILS_IN_BASELINE,
}
KNOBS = {"precision": ("fp32", "bf16"), "channels_last": (False, True)}
FLAGS = ("avx512_bf16", "amx_bf16")

# Runs as `python -m autotune.trial` would: the plan's knobs are "applied", the steps are the world's.
_STUB = """#!{python} -S
import os, sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {support!r}]
from autotune.model import wire
from autotune.model.measurement import Reading
from autotune.launch.fake import WORLDS, World
from autotune.protocol.events import Broke, Closed, Done, Hello, ReadBack as Seen, StepRow, Steps
from autotune.protocol.lines import Writer
from autotune.protocol.plan import load_plan
plan = load_plan(os.environ)
writer = Writer(Path(plan.events_path), plan.nonce)
world = wire.loads(World, {world!r})
(segment,) = plan.segments
begin = time.perf_counter_ns()
writer.write(Hello(pid=os.getpid(), t_ns=begin, python=sys.version))
if world.broken or any(item in world.crashes for item in segment.config.items()):
    print("Traceback (most recent call last):\\nRuntimeError: broken", file=sys.stderr)
    sys.exit(1)
step_ns, samples = int(world.step_s(segment.config) * 1e9), world.samples(segment.config)
steps = max(segment.fidelity.min_steps, 60)
rows = tuple(StepRow(t_ns=begin + i * step_ns, wait_ns=0, samples=samples) for i in range(steps + 1))
writer.write(Steps(rows=rows))
writer.write(Seen(facts=world.facts()))
readings = tuple(Reading(knob=k, wanted=v, found=v, status="applied") for k, v in segment.config.items())
writer.write(Closed(trial=segment.trial, begin_ns=begin, end_ns=rows[-1].t_ns, ended="limit",
                    steady="steady", first_step_ns=begin, compile_s=0.0, readings=readings))
writer.write(Done(why="measured", steps=steps))
os._exit(0)
"""


def stub_python(folder: Path, world: World) -> str:
    """Path of an interpreter whose every run is a trial of this world."""
    from autotune.model import wire

    path = folder / "python"
    root = Path(__file__).resolve().parents[2]
    path.write_text(
        _STUB.format(
            python=sys.executable, root=str(root), support=str(root / "tests"), world=wire.dumps(world)
        )
    )
    path.chmod(0o755)
    return str(path)


def open_session(
    folder: Path,
    *,
    clock: Clock,
    budget_s: float,
    python: str = sys.executable,
    trials: int | None = None,
    environ: Mapping[str, str] | None = None,
    args: tuple[str, ...] = (),
) -> tuple[Session, Journal]:
    """A session over a new journal in this folder, wired as a search is, with the real strategy."""
    script = folder / "train.py"
    script.write_text("print('no training here')\n")
    spec = StudySpec(
        study_id=STUDY_ID,
        label="train",
        script=str(script),
        args=args,
        cwd=str(folder),
        python=python,
        space=SpaceRequest(name="two", knobs=KNOBS),
        budget=Budget(seconds=budget_s, trials=trials),
    )
    host = HostFacts(cpus=8, physical_cores=4, memory_bytes=2**35, cpu_flags=FLAGS)
    facts = Facts(host=host, script=ScriptFacts(path=str(script)))
    journal = Journal.create(folder / "journal.db")
    opened = {"spec": spec, "wall_s": clock.wall_s(), "host": "", "pid": 1, "version": "0"}
    journal.append("opened", f"opened/{journal.epoch}", to_wire(opened))
    journal.append("inspected", "inspected/1", to_wire({"facts": facts}))
    session = Session(
        journal=journal,
        study=Study(spec=spec, facts=facts),
        strategy=Staged(),
        planner=Planner(
            knobs=builtin(), environ={"PATH": "/usr/bin:/bin", **(environ or {})}, memory_limit_bytes=0
        ),
        clock=clock,
    )
    return session, journal
