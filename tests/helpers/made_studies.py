"""Studies made by hand, as the journal's events report them; shared by tests of store, report and driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.answer.answer import Answer, FrontMember, Recommendation, SearchOutcome
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, RunFacts, ScriptFacts
from autotune.model.measurement import Estimate, LossPoint, Measurement, Memory
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Fidelity, Stage, Trial
from autotune.store.journal import Entry
from autotune.store.outbox import OutboxRow, rows_for

STUDY_ID = "01JD0000000000000000000001"
WALL_S = 1_700_000_000.0
FIDELITY = Fidelity(min_window_s=1, max_window_s=5, min_steps=5, target_width=0.02, setup_s=30, deadline_s=60)
RUN = RunFacts(
    values={"batch_size": 64, "num_workers": 0, "precision": "fp32", "pin_memory": False}, threads=2
)
FACTS = Facts(
    host=HostFacts(cpus=2, physical_cores=2, memory_bytes=24 * 2**30), script=ScriptFacts(path="/w/train.py")
)


def spec(**changes: Any) -> StudySpec:
    made = StudySpec(
        study_id=STUDY_ID,
        label="train-1121-1002",
        script="/w/train.py",
        args=("--epochs", "1"),
        cwd="/w",
        python="python",
        space=SpaceRequest(name="quick"),
        budget=Budget(seconds=600.0),
        out="/w/best.yaml",
        version="0.1.0",
    )
    return replace(made, **changes)


def estimate(value: float, *, width: float = 0.02, unit: str = "samples/s", n: int = 8) -> Estimate:
    return Estimate(value=value, low=value * (1 - width), high=value * (1 + width), n=n, unit=unit)


def measured(rate: float, *, gib: float = 2.0, loss: bool = True) -> Measurement:
    points = tuple(LossPoint(samples=64 * i, loss=2.0 / (1 + i), t_s=0.1 * i) for i in range(1, 6))
    return Measurement(
        throughput=estimate(rate),
        step_time_s=estimate(64 / rate, unit="s"),
        data_wait_frac=0.1,
        memory=Memory(pss=int(gib * 2**30)),
        loss=points if loss else (),
        steps=50,
        window_s=3.0,
        effective_batch=64.0,
    )


OOM = Failure(
    kind=FailureKind.OOM_HOST,
    message="used 25.1 GiB of 24.0 GiB",
    evidence={"log_tail": "step 3\nMemoryError: cannot allocate", "exit": -9},
)
BEST = Config({"precision": "bf16", "num_workers": 2})
OUTCOMES = (
    (Stage.BASELINE, Config(), measured(100.0)),
    (Stage.BASELINE, Config(), measured(102.0)),
    (Stage.INITIAL, Config({"num_workers": 2}), measured(130.0)),
    (Stage.INITIAL, BEST, measured(241.123456)),
    (Stage.REFINE, Config({"batch_size": 4096}), OOM),
    (Stage.CONFIRM, Config(), measured(100.0)),
    (Stage.CONFIRM, BEST, measured(240.0)),
)


@dataclass(frozen=True)
class Event:
    kind: str
    uid: str
    data: Mapping[str, Any]

    @property
    def outbox(self) -> tuple[OutboxRow, ...]:
        return rows_for(self.kind, self.data)


def events(
    *, stopped: str = "finished", outcomes: tuple[Any, ...] = OUTCOMES, **changes: Any
) -> Iterator[Event]:
    opened = {"spec": spec(**changes), "wall_s": WALL_S, "host": "h", "pid": 1, "version": "0.1.0"}
    yield Event("opened", "opened/1", opened)
    yield Event("inspected", "inspected/1", {"facts": FACTS})
    for number, (stage, config, outcome) in enumerate(outcomes):
        group = 1 if stage is Stage.CONFIRM else 0
        trial = Trial(
            number=number, config=config, stage=stage, fidelity=FIDELITY, reason="made by hand", group=group
        )
        place = {"number": number, "attempt": 1}
        yield Event("proposed", f"proposed/{number}/1", {"trial": trial, "uid": f"t{number:04d}-a1-00ff00"})
        yield Event("started", f"started/{number}/1", {**place, "uid": "u", "host": "h", "pid": 2})
        facts = RUN if number == 0 else None
        reported = {
            **place,
            "outcome": outcome,
            "seconds": 10.0,
            "elapsed_s": 12.0 * (number + 1),
            "facts": facts,
        }
        yield Event("finished", f"finished/{number}/1", reported)
    if stopped:
        yield Event("stopped", "stopped/1", {"why": stopped, "elapsed_s": 12.0 * len(outcomes) + 1})


def study(**changes: Any) -> Study:
    from autotune.model.wire import to_wire
    from autotune.store.fold import fold

    made = list(events(**changes))
    rows = [
        Entry(seq=i, uid=e.uid, epoch=1, kind=e.kind, data=to_wire(e.data), wall_s=WALL_S + i)
        for i, e in enumerate(made, start=1)
    ]
    return fold(rows)


def verdict(word: str = "pass") -> LossVerdict:
    return LossVerdict(
        level=1, verdict=word, delta=0.004, margin=0.02, steps=50, reason="Not inferior by 0.004."
    )


def pick(
    name: str, config: Config, trial: int, speedup: Estimate, effect: Effect = Effect.NUMERIC
) -> Recommendation:
    return Recommendation(
        pick=name,
        config=config,
        trial=trial,
        effect=effect,
        speedup=speedup,
        throughput=estimate(100 * speedup.value),
        peak_bytes=3 * 2**30,
        loss=verdict(),
        reasons=("bf16 halves what the matrix units have to move.",),
    )


def found() -> Answer:
    best = pick("best", BEST, 3, Estimate(value=2.41, low=2.34, high=2.48, n=4, unit="ratio"))
    safe = pick(
        "safe",
        Config({"num_workers": 2}),
        2,
        Estimate(value=1.3, low=1.25, high=1.36, n=4, unit="ratio"),
        Effect.EXACT,
    )
    return Answer(
        is_better=True,
        outcome=SearchOutcome.FASTER,
        baseline_throughput=estimate(101.0),
        baseline_peak_bytes=2 * 2**30,
        safe=safe,
        best=best,
        fastest=None,
        identical=Estimate(value=1.01, low=0.98, high=1.03, n=3, unit="ratio"),
        front=(FrontMember(trial=3, config=BEST, throughput=241.0, peak_bytes=3 * 2**30, loss=0.4),),
        failures={"oom_host": 1},
        sentence="Your script trains 2.41 times as fast.",
        caveats=("Only one machine was used.",),
    )


def no_gain() -> Answer:
    same = pick("best", Config(), 0, Estimate(value=1.0, low=1.0, high=1.0, n=0, unit="ratio"), Effect.EXACT)
    return replace(
        found(),
        is_better=False,
        outcome=SearchOutcome.NOTHING_FASTER,
        best=same,
        safe=replace(same, pick="safe"),
        sentence="Nothing beats your script.",
        front=(FrontMember(trial=0, config=Config(), throughput=101.0, peak_bytes=2 * 2**30, loss=None),),
    )


def inconclusive() -> Answer:
    """The winner of `found` before it was confirmed: it read 2.18 times as fast in two runs."""
    likely = pick("likely", BEST, 3, Estimate(value=2.18, low=0.07, high=106.61, n=2, unit="ratio"))
    return replace(
        no_gain(),
        outcome=SearchOutcome.INCONCLUSIVE,
        likely=replace(likely, runs=2),
        unsettled=("precision=bf16 reads 2.18x in 2 runs, not confirmed.", "Not measured yet: compile."),
        resume="autotune resume train-1121-1002 --budget 8m",
        sentence="Inconclusive: not measured yet: compile.",
    )


def migrated_store(directory: Path) -> Path:
    """A migrated MLflow store to copy, made once per test run: making one takes seconds."""
    from autotune.report.mlflow.recorder import MlflowSink

    path = directory / "template" / "mlflow.db"
    if not path.exists():
        MlflowSink(f"sqlite:///{path}").open()
    return path
