"""Small stand-ins for a session's neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.model.config import Config
from autotune.model.facts import Facts, HostFacts, RunFacts, ScriptFacts
from autotune.model.measurement import Estimate, Measurement, Memory
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import (
    Assignment,
    Failure,
    FailureKind,
    Fidelity,
    Launch,
    Proposal,
    Segment,
    Stage,
    Trial,
)
from autotune.search.strategy import Strategy

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def spec(budget_s: float = 300.0) -> StudySpec:
    return StudySpec(
        study_id="01STUDY",
        label="train",
        script="/nowhere/train.py",
        args=(),
        cwd="/nowhere",
        python="python",
        space=SpaceRequest(name="default"),
        budget=Budget(seconds=budget_s),
    )


def facts() -> Facts:
    host = HostFacts(cpus=2, physical_cores=2, memory_bytes=2**34)
    return Facts(host=host, script=ScriptFacts(path="/nowhere/train.py"))


def measurement(rate: float = 100.0) -> Measurement:
    return Measurement(
        throughput=Estimate(value=rate, low=rate * 0.98, high=rate * 1.02, n=8, unit="samples/s"),
        step_time_s=Estimate(value=10 / rate, low=9.8 / rate, high=10.2 / rate, n=8, unit="s"),
        data_wait_frac=0.1,
        memory=Memory(pss=10**8),
    )


@dataclass
class Listed(Strategy):
    """Proposes what it was given, in order; which is next follows from the study alone."""

    configs: Sequence[Config]

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        done = len(study.trials)
        if done >= len(self.configs):
            return None
        stage = Stage.BASELINE if self.configs[done].is_baseline else Stage.REFINE
        return Proposal(stage=stage, config=self.configs[done], fidelity=FIDELITY, reason="it is next")

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        return len(study.trials) >= len(self.configs)


@dataclass
class PlainPlanner:
    """An assignment for every config; `dead_knobs` have no way at all."""

    dead_knobs: frozenset[str] = frozenset()
    other_way: bool = True
    spaces_built: list[Facts] = field(default_factory=list)

    def space(self, spec: StudySpec, facts: Facts, dead: frozenset[tuple[str, str]] = frozenset()):
        self.spaces_built.append(facts)
        dimension = Dimension(knob="workers", values=(0, 1, 2), own=0)
        return SearchSpace(dimensions={"workers": dimension}), {"precision": "There is no bf16 here."}

    def changes(self, config: Config, facts: Facts, dead: frozenset[tuple[str, str]] = frozenset()):
        from autotune.model.change import Refusal

        return (), () if self.other_way or not dead else (Refusal(knob="workers", reason="No way is left."),)

    def assign(self, study: Study, trial: Trial) -> Assignment | Failure:
        if set(trial.config) & self.dead_knobs:
            return Failure(
                kind=FailureKind.CONFIG_REJECTED, message="no way", evidence={"knob": "x", "how": "none"}
            )
        launch = Launch(command=("python",), script="s", argv=(), python="python", cwd="/", env={})
        segment = Segment(trial=trial.number, config=trial.config, fidelity=trial.fidelity)
        return Assignment(
            uid=f"t{trial.number}-a{trial.attempt}",
            study_id="01STUDY",
            attempt=trial.attempt,
            launch=launch,
            segments=(segment,),
        )


RUN_FACTS = RunFacts(samples_source="loader", effective_batch=32, values={"workers": 0})
