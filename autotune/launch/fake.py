"""Runner without processes: a public cost model of training, for tests, benchmarks and replay.

The truth is known (`World.step_s`, `World.memory_bytes`), so the result of a search can be checked. Time
passes on a `SimulatedClock`; the same seed gives the same outcomes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.clock import Clock, SimulatedClock
from autotune.launch.runner import Runner, TrialResult
from autotune.model.config import Config, Value
from autotune.model.facts import LoaderFacts, ModelFacts, OptimizerFacts, RunFacts
from autotune.model.measurement import Contamination, Estimate, LossPoint, Measurement, Memory, Reading
from autotune.model.trial import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.model.trial import Assignment, Fidelity, Outcome

Pair = tuple[str, Value]
GIB = 2**30
_LOSS_POINTS = 100
_WARMUP_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A script on a machine, as formulas.

    A step takes ``accumulation * (overhead_s + batch * compute_s * factors)`` of computing, and loading takes
    ``samples * load_s / workers`` beside it (before it, without workers).

    Args:
        batch, workers, precision: Values in the unchanged script.
        load_s: CPU seconds to load one sample.
        cpus: Workers beyond these do not help.
        gains: Knob -> value -> factor on the computing per sample; below 1 is faster.
        memory: The same for the memory per sample.
        limit_bytes: Larger needs end as out-of-memory.
        compile_s: Compile mode -> seconds, cold.
        process_noise: Relative standard deviation between processes.
        step_noise: The same between steps.
        crashes, hangs, diverges, rejects: (knob, value) pairs with that outcome.
        broken: The script fails unchanged.
        loss_first, loss_floor, loss_scale: Loss falls from first to floor, by 1/e per so many samples.
        loss_noise: Standard deviation of a step's loss; the same for the same seed and step.
        noise_scale: Batches well below it lose no progress per sample.
        seed: Seed of all noise.
    """

    name: str
    batch: int = 32
    workers: int = 0
    cpus: int = 8
    overhead_s: float = 0.002
    compute_s: float = 0.0005
    load_s: float = 0.0001
    gains: Mapping[str, Mapping[Value, float]] = field(default_factory=dict[str, Mapping[Value, float]])
    memory: Mapping[str, Mapping[Value, float]] = field(default_factory=dict[str, Mapping[Value, float]])
    base_bytes: int = GIB
    sample_bytes: int = 8 * 2**20
    limit_bytes: int = 16 * GIB
    compile_s: Mapping[str, float] = field(default_factory=lambda: {"default": 40.0, "max-autotune": 120.0})
    startup_s: float = 3.0
    process_noise: float = 0.01
    step_noise: float = 0.03
    crashes: frozenset[Pair] = frozenset()
    hangs: frozenset[Pair] = frozenset()
    diverges: frozenset[Pair] = frozenset()
    rejects: frozenset[Pair] = frozenset()
    broken: bool = False
    loss_first: float = 2.5
    loss_floor: float = 0.5
    loss_scale: float = 4000.0
    loss_noise: float = 0.02
    noise_scale: float = 512.0
    seed: int = 0

    def samples(self, config: Config) -> int:
        """Return the samples per optimizer step."""
        return self._int(config, "batch_size", self.batch) * self._int(config, "accumulation", 1)

    def step_s(self, config: Config) -> float:
        """Return the true seconds per optimizer step."""
        batch = self._int(config, "batch_size", self.batch)
        compute = self._int(config, "accumulation", 1) * (
            self.overhead_s + batch * self.compute_s * _product(self.gains, config)
        )
        load = self.samples(config) * self.load_s
        workers = self._int(config, "num_workers", self.workers)
        return compute + load if workers == 0 else max(compute, load / min(workers, self.cpus))

    def wait_s(self, config: Config) -> float:
        """Return the true seconds of a step spent waiting for data."""
        load = self.samples(config) * self.load_s
        workers = self._int(config, "num_workers", self.workers)
        if workers == 0:
            return load
        compute = self.step_s(config.with_(num_workers=0)) - load
        return max(0.0, load / min(workers, self.cpus) - compute)

    def throughput(self, config: Config) -> float:
        """Return the true samples per second."""
        return self.samples(config) / self.step_s(config)

    def memory_bytes(self, config: Config) -> int:
        """Return the true peak memory."""
        batch = self._int(config, "batch_size", self.batch)
        return int(self.base_bytes + batch * self.sample_bytes * _product(self.memory, config))

    def compiles_s(self, config: Config) -> float:
        """Return the true seconds of a cold compile."""
        return self.compile_s.get(str(config.get("compile_mode", "off")), 0.0)

    def loss(self, config: Config, samples: int) -> float:
        """Return the true loss after a number of samples; larger steps gain less per sample."""
        mine, own = self.samples(config), self.batch
        useful = samples * (self.noise_scale + own) / (self.noise_scale + mine)
        return self.loss_floor + (self.loss_first - self.loss_floor) * math.exp(-useful / self.loss_scale)

    def facts(self) -> RunFacts:
        """Return the facts that the baseline's process would report."""
        return RunFacts(
            loader=LoaderFacts(
                site="train.py:12",
                batch_size=self.batch,
                num_workers=self.workers,
                prefetch_factor=2 if self.workers else None,
                pin_memory=False,
                persistent_workers=False,
                length=2000,
                dataset_length=2000 * self.batch,
                fetch_cpu_frac=1.0 if self.workers == 0 else None,
                fetch_s=self.batch * self.load_s,
            ),
            model=ModelFacts(name="Net", parameters=1_000_000, parameter_bytes=4_000_000, has_4d=True),
            optimizer=OptimizerFacts(name="AdamW", can_fuse=True),
            samples_source="loader",
            effective_batch=self.batch,
            zero_grad_seen=True,
            reduction="mean",
            threads=self.cpus,
            values={
                "batch_size": self.batch,
                "num_workers": self.workers,
                "accumulation": 1,
                "precision": "fp32",
                "compile_mode": "off",
                "channels_last": False,
                "fused_optimizer": False,
                "pin_memory": False,
                "persistent_workers": False,
                "threads": self.cpus,
            },
        )

    @staticmethod
    def _int(config: Config, knob: str, own: int) -> int:
        return int(config.get(knob, own))


def _product(table: Mapping[str, Mapping[Value, float]], config: Config) -> float:
    return math.prod(values[config[knob]] for knob, values in table.items() if config.get(knob) in values)


INPUT_BOUND = World(
    name="input_bound",
    load_s=0.002,
    compute_s=0.0002,
    gains={"precision": {"bf16": 0.6}, "channels_last": {True: 0.9}},
)
COMPUTE_BOUND = World(
    name="compute_bound",
    compute_s=0.002,
    load_s=0.00002,
    gains={
        "precision": {"bf16": 0.55, "fp16": 0.6},
        "compile_mode": {"default": 0.75, "max-autotune": 0.72},
        "channels_last": {True: 0.85},
        "fused_optimizer": {True: 0.98},
    },
    memory={"precision": {"bf16": 0.6, "fp16": 0.6}},
)
NOTHING_TO_GAIN = World(
    name="nothing_to_gain",
    overhead_s=0.0,
    load_s=0.0,
    gains={"precision": {"bf16": 1.3, "fp16": 1.4}, "compile_mode": {"default": 1.02, "max-autotune": 1.02}},
)
FAILS_IN_BASELINE = World(name="fails_in_baseline", broken=True)
TINY_WITH_OOM = World(
    name="tiny_with_oom",
    batch=16,
    overhead_s=0.02,
    limit_bytes=GIB + 100 * 8 * 2**20,
    crashes=frozenset({("compile_mode", "max-autotune")}),
    hangs=frozenset({("num_workers", 8)}),
    diverges=frozenset({("precision", "fp16")}),
    rejects=frozenset({("channels_last", True)}),
)
WORLDS: Mapping[str, World] = {
    w.name: w for w in (INPUT_BOUND, COMPUTE_BOUND, NOTHING_TO_GAIN, FAILS_IN_BASELINE, TINY_WITH_OOM)
}


class FakeRunner(Runner):
    """Runs assignments in a `World`.

    Args:
        world: The simulated script and machine.
        clock: Advanced by the duration of each trial; None: a new `SimulatedClock`.
    """

    def __init__(self, world: World, clock: Clock | None = None) -> None:
        self.world = world
        self.clock = clock or SimulatedClock()
        self._compiled: set[str] = set()
        self._running = False
        self._stopped = False

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Run an assignment; yield one result per segment, up to the first failure."""
        self._running, self._stopped = True, False
        begun_s = self.clock.now_s()
        try:
            for segment in assignment.segments:
                # The uid would not do: it differs between searches.
                key = (self.world.seed, assignment.launch.seed, segment.trial, assignment.attempt)
                noise = random.Random(repr(key))
                outcome = self._outcome(segment.config, segment.fidelity, assignment, noise)
                if self._stopped:
                    outcome = Failure(kind=FailureKind.KILLED_USER, message="ended by request")
                yield TrialResult(
                    trial=segment.trial,
                    outcome=outcome,
                    seconds=self.clock.now_s() - begun_s,
                    facts=None if self.world.broken else self.world.facts(),
                )
                if isinstance(outcome, Failure):
                    return
        finally:
            self._running = False

    def stop(self) -> None:
        """End the running trial, if any, as ``killed_user``."""
        self._stopped = self._running

    def _outcome(
        self, config: Config, fidelity: Fidelity, assignment: Assignment, noise: random.Random
    ) -> Outcome:
        world = self.world
        failure = self._failure(config, fidelity, assignment)
        if failure is not None:
            return failure
        cold = world.compiles_s(config) > 0 and config.canonical() not in self._compiled
        compile_s = world.compiles_s(config) * (1.0 if cold else 0.1)
        self._compiled.add(config.canonical())
        step_s = world.step_s(config) * math.exp(noise.gauss(0.0, world.process_noise))
        steps, ended = self._window_steps(config, fidelity, step_s)
        width = 1.96 * world.step_noise / math.sqrt(steps)
        seen_step_s = step_s * (1.0 + noise.gauss(0.0, world.step_noise / math.sqrt(steps)))
        spent_s = world.startup_s + compile_s + (_WARMUP_STEPS + steps) * step_s
        if spent_s > fidelity.deadline_s:
            self.clock.sleep(fidelity.deadline_s)
            return Failure(
                kind=FailureKind.TIMEOUT_TOTAL,
                message=f"not done after {fidelity.deadline_s:.0f} s",
                evidence={"steps": 0},
            )
        self.clock.sleep(spent_s)
        samples, peak = world.samples(config), world.memory_bytes(config)
        measurement = Measurement(
            throughput=_around(samples / seen_step_s, width, steps, "samples/s"),
            step_time_s=_around(seen_step_s, width, steps, "s"),
            data_wait_frac=min(1.0, world.wait_s(config) / world.step_s(config)),
            memory=Memory(allocator=peak, device=peak + GIB // 2, pss=2 * GIB, limit=world.limit_bytes),
            loss=self._trace(
                config, assignment.launch.seed, samples, _WARMUP_STEPS + steps, step_s, compile_s
            ),
            compile_s=compile_s,
            cold_compile=cold,
            startup_s=world.startup_s,
            warmup_steps=_WARMUP_STEPS,
            steps=steps,
            window_s=steps * seen_step_s,
            effective_batch=float(samples),
            contamination=Contamination(run_queue_frac=0.0, pressure_frac=0.0, foreign_cpu_frac=0.0),
            readings=tuple(Reading(knob=k, wanted=v, found=v, status="applied") for k, v in config.items()),
            ended=ended,
        )
        bad = _hit(config, world.diverges)
        if bad:
            return Failure(
                kind=FailureKind.DIVERGED,
                message=f"the loss became nan after {samples * 10} samples",
                evidence={"samples": samples * 10},
                readings=measurement,
            )
        return measurement

    def _failure(self, config: Config, fidelity: Fidelity, assignment: Assignment) -> Failure | None:
        world = self.world
        rejected = _hit(config, world.rejects)
        if rejected:
            self.clock.sleep(world.startup_s)
            how = next((c.spelling.how for c in assignment.launch.changes if c.knob == rejected), "patch")
            return Failure(
                kind=FailureKind.CONFIG_REJECTED,
                message=f"{rejected}={config[rejected]} did not take effect: refused by the fake script",
                evidence={"knob": rejected, "how": how},
            )
        if world.broken or _hit(config, world.crashes):
            self.clock.sleep(world.startup_s)
            return Failure(
                kind=FailureKind.CRASH_EXIT,
                message="exit code 1: RuntimeError: the fake script is broken",
                evidence={"code": 1, "log_tail": "Traceback (most recent call last):\nRuntimeError: broken"},
            )
        if _hit(config, world.hangs):
            self.clock.sleep(world.startup_s + fidelity.setup_s)
            return Failure(
                kind=FailureKind.TIMEOUT_PROGRESS,
                message=f"no step for {fidelity.setup_s:.0f} s (before the first step)",
                evidence={"steps": 0},
            )
        limit = min(world.limit_bytes, assignment.memory_limit_bytes or world.limit_bytes)
        needed = world.memory_bytes(config)
        if needed > limit:
            self.clock.sleep(world.startup_s + 1.0)
            return Failure(
                kind=FailureKind.OOM_CUDA,
                message=f"OutOfMemoryError: {needed / GIB:.1f} GiB of {limit / GIB:.1f} GiB",
                evidence={"peak_bytes": needed},
            )
        return None

    def _window_steps(self, config: Config, fidelity: Fidelity, step_s: float) -> tuple[int, str]:
        """Return the number of steps that the stop rule needs, and the reason to stop."""
        noise, samples = self.world.step_noise, self.world.samples(config)
        tight = (2 * 1.96 * noise / fidelity.target_width) ** 2
        least = max(fidelity.min_steps, fidelity.min_window_s / step_s, 2)
        most = max(least, fidelity.max_window_s / step_s)
        steps, ended = min(max(tight, least), most), "tight" if tight <= most else "limit"
        doubt = 2.0 * 1.96 * noise / math.sqrt(least)
        if steps > least and samples / step_s * (1.0 + doubt) < fidelity.dominated_below:
            steps, ended = least, "dominated"
        if fidelity.loss_samples:
            steps = max(steps, fidelity.loss_samples / samples - _WARMUP_STEPS)
        return math.ceil(steps), ended

    def _trace(
        self, config: Config, seed: int, samples: int, steps: int, step_s: float, compile_s: float
    ) -> tuple[LossPoint, ...]:
        every = max(1, steps // _LOSS_POINTS)
        points: list[LossPoint] = []
        for step in range(every, steps + 1, every):
            seen = step * samples
            shared = random.Random(f"{self.world.seed}/{seed}/{seen}").gauss(0.0, self.world.loss_noise)
            loss = self.world.loss(config, seen) + shared / math.sqrt(max(1.0, samples / self.world.batch))
            points.append(LossPoint(samples=seen, loss=loss, t_s=compile_s + step * step_s))
        return tuple(points)


def _hit(config: Config, pairs: frozenset[Pair]) -> str:
    return next((k for k, v in config.items() if (k, v) in pairs), "")


def _around(value: float, relative: float, n: int, unit: str) -> Estimate:
    return Estimate(value=value, low=value * (1 - relative), high=value * (1 + relative), n=n, unit=unit)
