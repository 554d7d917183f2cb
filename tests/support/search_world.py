"""Analytic training scripts for tests of the search: costs, noise, memory, loss; no processes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.compare.transfer import fingerprint
from autotune.model.config import Config, Value
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, LoaderFacts, RunFacts, ScriptFacts
from autotune.model.history_record import Earlier, Transfer
from autotune.model.measurement import Estimate, LossPoint, Measurement, Memory
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Fidelity, Outcome, Proposal, Trial, TrialState
from autotune.search.strategy import Strategy

GIB = 2**30


def _no_prefetch_without_workers(config: Config) -> Config | str:
    if config.get("num_workers", 0) == 0:
        return config.without("prefetch_factor", "persistent_workers")
    return config


def dimension(knob: str, values: tuple[Value, ...], own: Value, **more: object) -> Dimension:
    return replace(Dimension(knob=knob, values=values, own=own), **more)  # type: ignore[arg-type]


def usual_space(*, training: bool = True) -> SearchSpace:
    """Eight to nine knobs as a single-device script has them."""
    dimensions = [
        dimension("num_workers", (0, 1, 2, 4, 8), 0, ordinal=True),
        dimension("precision", ("fp32", "bf16"), "fp32", effect=Effect.NUMERIC),
        dimension("compile", ("off", "default"), "off", effect=Effect.NUMERIC),
        dimension("batch_size", (8, 16, 32, 64, 128), 32, ordinal=True),
        dimension("channels_last", (False, True), False, effect=Effect.NUMERIC),
        dimension("threads", (1, 2, 4), 2, ordinal=True),
        dimension("fused_optimizer", (False, True), False, effect=Effect.NUMERIC),
        dimension("prefetch_factor", (2, 4), 2, ordinal=True),
    ]
    if training:
        dimensions.append(
            dimension("effective_batch", (16, 32, 64, 128), 32, ordinal=True, effect=Effect.TRAINING)
        )
    return SearchSpace(
        dimensions={d.knob: d for d in dimensions},
        rules=(_no_prefetch_without_workers,),
        starts=(Config({"num_workers": 2, "precision": "bf16"}), Config({"num_workers": 4})),
    )


def spec(*, seconds: float = 180.0, trials: int | None = None, seed: int = 0, **more: object) -> StudySpec:
    plain = StudySpec(
        study_id="01TEST",
        label="test",
        script="/s/train.py",
        args=(),
        cwd="/s",
        python="python",
        space=SpaceRequest(name="test"),
        budget=Budget(seconds=seconds, trials=trials),
        seed=seed,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def measurement(
    rate: float,
    *,
    peak_bytes: int | None = GIB,
    limit_bytes: int | None = None,
    wait: float = 0.0,
    loss: tuple[LossPoint, ...] = (),
    batch: float = 32.0,
    compile_s: float = 0.0,
    cold: bool = False,
    startup_s: float = 2.5,
) -> Measurement:
    step_s = batch / rate
    return Measurement(
        throughput=Estimate(value=rate, low=0.97 * rate, high=1.03 * rate, n=10, unit="samples/s"),
        step_time_s=Estimate(value=step_s, low=0.97 * step_s, high=1.03 * step_s, n=10, unit="s"),
        data_wait_frac=wait,
        memory=Memory(pss=peak_bytes, limit=limit_bytes),
        loss=loss,
        compile_s=compile_s,
        cold_compile=cold,
        startup_s=startup_s,
        steps=40,
        window_s=3.0,
        effective_batch=batch,
    )


def loss_trace(
    *,
    seed: int,
    steps: int = 60,
    batch: int = 32,
    delay: float = 0.0,
    seed_sd: float = 0.03,
    batch_sd: float = 0.1,
    jitter: float = 1e-4,
    jitter_seed: int = 0,
    step_s: float = 0.05,
    stuck: bool = False,
) -> tuple[LossPoint, ...]:
    """A falling curve; its batches' noise depends on the seed alone, as with equal sample order.

    Args:
        delay: Share of the steps that progress lags behind.
        jitter: Numerical noise of the config itself, new for each `jitter_seed`.
    """
    shared, own = random.Random(f"{seed}"), random.Random(f"{seed}/{jitter_seed}")
    shift = shared.gauss(0.0, seed_sd)
    points: list[LossPoint] = []
    for k in range(1, steps + 1):
        progress = 0.0 if stuck else k * (1.0 - delay)
        level = 0.3 + 2.0 * math.exp(-progress / (0.4 * steps))
        noise = shared.gauss(0.0, batch_sd) * level / 2 + own.gauss(0.0, jitter)
        points.append(LossPoint(samples=k * batch, loss=level + shift * (k / steps) + noise, t_s=k * step_s))
    return tuple(points)


@dataclass(frozen=True, kw_only=True)
class World:
    """How long a sample takes to compute and to load, by config.

    Args:
        speed: (knob, value) -> factor on the computing rate.
        compute_s: Per sample, as the script is.
        input_s: Per sample in one process that loads.
        noise: Standard deviation of ln rate between processes.
        limit_bytes: Above it a trial ends out of memory.
    """

    space: SearchSpace
    speed: Mapping[tuple[str, Value], float]
    compute_s: float = 0.01
    input_s: float = 0.0005
    noise: float = 0.02
    limit_bytes: float = 64 * GIB
    cores: int = 4
    compile_s: float = 25.0
    broken: frozenset[tuple[str, Value]] = frozenset()
    losses: bool = True
    extra: Mapping[str, Callable[[Config], float]] = field(default_factory=dict)

    def rate(self, config: Config) -> float:
        """True samples per second."""
        compute, load = self.compute_s, self.input_s
        for item in config.items():
            compute /= self.speed.get(item, 1.0)
        workers = int(config.get("num_workers", 0))
        if workers == 0:
            return 1.0 / (compute + load)
        return 1.0 / (1.02 * max(compute, load / min(workers, self.cores) ** 0.95))

    def wait(self, config: Config) -> float:
        compute = self.compute_s
        for item in config.items():
            compute /= self.speed.get(item, 1.0)
        return max(0.0, 1.0 - compute * self.rate(config) * 1.02)

    def peak_bytes(self, config: Config) -> float:
        batch = float(config.get("batch_size", 32))
        half = 0.6 if config.get("precision") == "bf16" else 1.0
        return GIB * (0.8 + half * batch / 32 + 0.2 * int(config.get("num_workers", 0)))

    def run(self, proposal: Proposal, number: int, compiled: set[Config], salt: int) -> tuple[Outcome, float]:
        """Outcome and seconds."""
        config, draw = proposal.config, random.Random(f"{salt}/{number}")
        if any(item in self.broken for item in config.items()):
            return Failure(kind=FailureKind.CRASH_EXIT, message="broken"), 3.0
        peak = self.peak_bytes(config)
        if peak > self.limit_bytes:
            return Failure(kind=FailureKind.OOM_CUDA, message="out of memory"), 4.0
        rate = self.rate(config) * math.exp(draw.gauss(0.0, self.noise))
        wants = "compile" in config
        compile_s = 0.0 if not wants else self.compile_s if config not in compiled else 3.0
        seconds = 4.0 + compile_s + _window(proposal.fidelity)
        if seconds > proposal.fidelity.deadline_s:
            return Failure(kind=FailureKind.TIMEOUT_TOTAL, message="too slow"), proposal.fidelity.deadline_s
        if wants:
            compiled.add(config)
        trace = loss_trace(seed=proposal.seed, jitter_seed=number) if self.losses else ()
        batch = float(config.get("effective_batch", 32))
        return (
            measurement(
                rate,
                peak_bytes=int(peak),
                limit_bytes=int(self.limit_bytes),
                wait=self.wait(config),
                loss=trace,
                batch=batch,
                compile_s=compile_s,
                cold=compile_s > 5.0,
            ),
            seconds,
        )

    def facts(self) -> Facts:
        loader = LoaderFacts(
            site="train.py:1",
            batch_size=32,
            num_workers=0,
            prefetch_factor=None,
            pin_memory=False,
            persistent_workers=False,
        )
        host = HostFacts(cpus=self.cores, physical_cores=self.cores, memory_bytes=64 * GIB)
        return Facts(host=host, script=ScriptFacts(path="/s/train.py"), run=RunFacts(loader=loader))

    def oracle(self) -> float:
        """Best true rate without changing the training."""
        return max(
            self.rate(c)
            for c in self.space.enumerate()
            if self.space.effect(c) is not Effect.TRAINING
            and self.peak_bytes(c) <= self.limit_bytes
            and not any(item in self.broken for item in c.items())
        )


def _window(fidelity: Fidelity) -> float:
    return 0.7 * fidelity.max_window_s


def tell(study: Study, proposal: Proposal, outcome: Outcome, seconds: float) -> Study:
    """The study with this trial reported."""
    trial = Trial(
        number=len(study.trials),
        config=proposal.config,
        stage=proposal.stage,
        fidelity=proposal.fidelity,
        reason=proposal.reason,
        seed=proposal.seed,
        group=proposal.group,
        state=TrialState.FINISHED,
        outcome=outcome,
        seconds=seconds,
        finished_s=study.elapsed_s + seconds,
    )
    return replace(study, trials=(*study.trials, trial), elapsed_s=study.elapsed_s + seconds)


def simulate(
    strategy: Strategy,
    world: World,
    study_spec: StudySpec,
    *,
    salt: int = 0,
    each: Callable[[Study, Proposal, float], None] | None = None,
    earlier: Sequence[Earlier] = (),
) -> Study:
    """Run a whole search on a virtual clock; every trial has half a second of overhead.

    Args:
        earlier: Records of earlier studies at its start.
    """
    study = Study(spec=study_spec, facts=replace(world.facts(), run=None))
    if earlier:
        study = replace(study, transfer=Transfer(present=fingerprint(study), earlier=tuple(earlier)))
    compiled: set[Config] = set()
    while True:
        remaining_s = study_spec.budget.seconds - study.elapsed_s
        proposal = strategy.ask(study, remaining_s)
        if proposal is None:
            return study
        if each is not None:
            each(study, proposal, remaining_s)
        outcome, seconds = world.run(proposal, len(study.trials), compiled, salt)
        study = tell(study, proposal, outcome, seconds + 0.5)
        if study.space is None:
            study = replace(study, space=world.space, facts=world.facts())
