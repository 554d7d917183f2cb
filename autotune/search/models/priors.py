"""Prior expectation of the speed of a config, from facts of the first runs; pure.

A step computes and loads. Without worker processes the two alternate; with them they overlap as far as there
are cores. Workers have to be started, and batches to be transferred. Known effects of single values act on
one of these parts, in proportion to its share of a step. This is the prior of the throughput model: it
decides what is tried first, and measurements replace it.

Figures for CPUs are rounded from the five open grids of `experiments/grids`, recorded on two machines of two
cores by 2026-11-23. Figures for NVIDIA devices are an expert's, checked against two sources:

- One search on an H100 (`experiments/gpu/results`, a transformer of 124 million parameters in float32,
  2026-11-26): bfloat16 5.1 times, compiled 1.25 times more, memory-efficient attention 0.88 times.
- Compiling the same model on A100s: 250 ms to 135 ms (A. Karpathy, nanoGPT's README).

A device computes while the host starts the next work: a step takes the longer of the two. The device's busy
time in the script's first run, by its own counters, shows which one is longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.compare.amortised_rate import baseline_runs
from autotune.knobs.registry import builtin
from autotune.knobs.traits import Prior, Setting
from autotune.model.facts import LoaderFacts
from autotune.model.run_length import planned_seconds
from autotune.search.models.compile_times import CompileTimes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.model.config import Value
    from autotune.model.space import SearchSpace
    from autotune.model.study import Study

Point = tuple["Value | None", ...]

_WAITS_AT, _BUSY_AT = 0.8, 0.95
_STARTS_IN: Final = 0.2
"""Assumed share of the host in a step if the device is busy above `_BUSY_AT`, where it cannot be observed.
Below `_WAITS_AT`, the device waits for the host, whose share is then the whole step."""
_ALIKE: Final = 3.0
_THREAD_POWER: Final = 0.7
_SMALL_STEP_S: Final = 5e-3
"""Step time in seconds at which work scales half as well over threads as in long steps."""
_SLEEPING: Final = 0.35
"""Loss of operator threads that sleep while waiting, on otherwise idle cores."""

_START_S: Final = 0.2
_KEPT_S: Final = 0.03
_SPAWNED_S: Final = 3.0
"""Seconds to have workers for a pass over the data: forked, persistent, or spawned."""
_SENT_S: Final = 1.5e-3
"""Seconds to receive a batch from a worker."""
_OVERLAP_LOSS: Final = 1.05
_HIDDEN: Final = 0.1
"""Share of a step that loading takes per worker if the loop does not wait for them."""
_HIDDEN_IN_A_CROWD: Final = 0.02
"""The same for workers that compete with the training for cores; computing is faster without them."""
_DEVICE_SHARE: Final = 0.2
"""Share of a core's time that feeding a device takes per second of its computing."""

_LEAST_SPREAD: Final = 0.03
_UNKNOWN: Final = Prior()
_OWN_SPREAD: Final = 0.3


@dataclass(frozen=True, slots=True)
class Priors:
    """Priors of one study, from its facts and the first run of its script; built by `Priors.of`.

    Args:
        knobs: Knobs in the order of the space, as in its points.
        owns: The script's own values.
        device: ``cpu``, ``cuda``, another, or empty if no model was observed.
        cores: CPUs available to the script.
        threads: The script's threads per operator; all cores if not observed.
        workers: The script's loader processes.
        fetch: Share of a step that loading takes in the loop; with workers, that the loop waits.
        compute: Share of a step that computing takes.
        batch_s: Seconds per batch of the loader; 0 if unknown.
        length: Batches in a pass over the data; 0 if unknown.
        fetch_cpu: CPU seconds per second of fetching.
        is_layered: Whether the model has convolutions over images.
        declared: Knobs declared by the user, without prior knowledge.
        busy: Share of computing time in which an accelerator was busy; 1 if unknown.
        run_s: Seconds of the planned run with the unchanged script; infinite if unknown.
        compiles: Expected compile times, which the planned run has to pay back.
    """

    knobs: tuple[str, ...]
    owns: Point
    device: str
    cores: int
    threads: int
    workers: int
    fetch: float
    compute: float
    batch_s: float
    length: int
    fetch_cpu: float
    is_layered: bool
    declared: frozenset[str]
    busy: float = 1.0
    run_s: float = math.inf
    compiles: CompileTimes | None = None

    @classmethod
    def of(cls, study: Study, space: SearchSpace) -> Priors | None:
        """Read the first measured run of the unchanged script; None if it or its facts are missing."""
        facts = study.facts
        run = facts.run if facts is not None else None
        first = next((t.measurement for t in baseline_runs(study) if t.measurement is not None), None)
        if facts is None or run is None or first is None:
            return None
        device = "" if run.model is None else run.model.device
        loader = run.loader
        waits = min(0.95, max(0.0, first.data_wait_frac))
        known = loader or LoaderFacts(
            site="", batch_size=None, num_workers=0, prefetch_factor=None, pin_memory=False,
            persistent_workers=False,
        )  # fmt: skip
        samples_s = first.throughput.value if first.throughput.unit == "samples/s" else 0.0
        batch = known.batch_size or 0
        # With several processes, waiting for the others in a collective counts as busy.
        counted = first.extra.get("device_busy_frac", 1.0) if run.ranks == 1 else 1.0
        return cls(
            knobs=tuple(space.dimensions),
            owns=tuple(d.own for d in space.dimensions.values()),
            device="cuda" if device.startswith("cuda") else device,
            cores=max(1, facts.host.cpus),
            threads=run.threads or max(1, facts.host.cpus),
            workers=known.num_workers,
            fetch=waits if loader is not None else 0.0,
            compute=1.0 - waits,
            batch_s=batch / samples_s if samples_s > 0.0 else 0.0,
            length=known.length or 0,
            fetch_cpu=1.0 if known.fetch_cpu_frac is None else min(1.0, max(0.05, known.fetch_cpu_frac)),
            is_layered=run.model is not None and run.model.has_4d,
            declared=frozenset(spec.name for spec in study.spec.space.declared),
            busy=min(1.0, max(0.05, counted / (1.0 - waits))),
            run_s=planned_seconds(study) or math.inf,
            compiles=CompileTimes.of(study),
        )

    def mean(self, point: Point) -> float:
        """Return ln(rate / baseline's rate) of a point of the space."""
        own, other = self._step(self.owns), self._step(point)
        if min(own, other) <= 0.0:
            return 0.0
        return math.log(own / (other + own * self._compiling(point)))

    def _compiling(self, point: Point) -> float:
        """Return the added compile as a share of the planned run; 0 if its length is unknown."""
        if self.compiles is None or not 0.0 < self.run_s < math.inf:
            return 0.0
        changes = {k: v for k, v, own in zip(self.knobs, point, self.owns, strict=True) if v != own}
        return self.compiles.first(changes) / self.run_s

    def spreads(self) -> tuple[float, ...]:
        """Return the prior standard deviation by knob, in ln rate."""
        return tuple(self._spread(knob) for knob in self.knobs)

    def _spread(self, knob: str) -> float:
        if knob in self.declared:
            return _OWN_SPREAD
        prior = _prior(knob)
        usual = prior.spread_on.get(self.device, prior.spread)
        # Where little is loaded, loader knobs have little effect, unless workers compete for cores.
        if prior.is_of_loading and not self._is_crowded:
            usual = max(_LEAST_SPREAD, usual * min(1.0, 2.0 * self.fetch + 0.2))
        return usual

    @property
    def _is_crowded(self) -> bool:
        """Whether the script's workers and computing threads exceed the cores."""
        return self.device == "cpu" and self.workers > 0 and self.threads + self.workers > self.cores

    def _step(self, point: Point) -> float:
        """Return the time of a step, in steps of the unchanged script."""
        chosen = dict(zip(self.knobs, point, strict=True))
        own = dict(zip(self.knobs, self.owns, strict=True))
        slower = math.exp(self._slower(chosen, own) - self._slower(own, own))
        compute = self.compute * (self._beside_host(slower, chosen, own) if self.device == "cuda" else slower)
        on_cpu = self.device == "cpu"
        busy = 1
        if on_cpu:
            busy = _count(chosen.get("threads"), self.threads)
            compute *= (_count(own.get("threads"), self.threads) / busy) ** self._thread_power()
        workers = chosen.get("num_workers")
        workers = workers if isinstance(workers, int) else self.workers
        sleeps = chosen.get("wait_policy") == "PASSIVE"
        if self.workers > 0:
            return compute + self._waits_for(workers) + (self._handing_over(chosen) if workers else 0.0)
        if workers <= 0:
            return (compute * (1.0 + _SLEEPING * (sleeps and busy > 1))) + self.fetch
        if on_cpu and busy >= self.cores and not sleeps:
            # Threads that spin while waiting leave no core to workers: nothing overlaps.
            step = compute + self.fetch
        else:
            wanted = compute * busy if on_cpu else compute * _DEVICE_SHARE
            shared = (self.fetch * self.fetch_cpu + wanted) / self.cores
            step = _OVERLAP_LOSS * max(compute, self.fetch / workers, shared)
        return step + self._handing_over(chosen)

    def _beside_host(
        self, slower: float, chosen: Mapping[str, Value | None], own: Mapping[str, Value | None]
    ) -> float:
        """Return the compute time relative to the script's: the longer of device and host time."""

        def starting(config: Mapping[str, Value | None]) -> float:
            known = [(k, v) for k, v in config.items() if isinstance(v, (str, bool))]
            return math.fsum(_prior(knob).host.get(value, 0.0) for knob, value in known)

        held_back = min(1.0, max(0.0, (_BUSY_AT - self.busy) / (_BUSY_AT - _WAITS_AT)))
        host = _STARTS_IN ** (1.0 - held_back)
        # The host starts the same work for each batch, whatever its size.
        batches = _count(own.get("batch_size"), 1) / _count(chosen.get("batch_size"), 1)
        others = host * batches * math.exp(starting(chosen) - starting(own))
        return _longer(self.busy * slower, others) / _longer(self.busy, host)

    def _waits_for(self, workers: int) -> float:
        """Return the wait for the script's workers, hidden behind computing unless the loop waits."""
        if workers > 0:
            # If the loop hardly waits, more workers than cores only wait for one another.
            has_enough = self._is_crowded and self.fetch < _HIDDEN
            return self.fetch * self.workers / (min(workers, self.workers) if has_enough else workers)
        hidden = _HIDDEN_IN_A_CROWD if self._is_crowded else _HIDDEN
        return max(self.fetch, hidden) * self.workers

    def _thread_power(self) -> float:
        """Return the exponent of the speedup by threads; short steps hardly scale."""
        seconds = self.compute * self.batch_s
        return _THREAD_POWER * seconds / (seconds + _SMALL_STEP_S) if seconds > 0.0 else _THREAD_POWER

    def _handing_over(self, chosen: Mapping[str, Value | None]) -> float:
        """Return the overhead of workers, in steps of the unchanged script."""
        if self.batch_s <= 0.0:
            return 0.0
        forked = chosen.get("mp_context") in (None, "fork")
        start_s = _KEPT_S if chosen.get("persistent_workers") is True else _START_S if forked else _SPAWNED_S
        each_s = _SENT_S + (start_s / self.length if self.length else 0.0)
        return each_s / self.batch_s

    def _slower(self, chosen: Mapping[str, Value | None], own: Mapping[str, Value | None]) -> float:
        """Return ln of the relative compute time, from known effects of single values."""
        setting = Setting(values=chosen, own=own, device=self.device, has_images=self.is_layered)
        knobs = builtin()
        return -sum(
            knobs[knob].expected_gain(value, setting)
            for knob, value in chosen.items()
            if value is not None and knob in knobs
        )


def _prior(knob: str) -> Prior:
    known = builtin().get(knob)
    return _UNKNOWN if known is None else known.prior


def _longer(one: float, other: float) -> float:
    """Return a smooth maximum of two times: times of similar length do not hide each other completely."""
    return (one**_ALIKE + other**_ALIKE) ** (1.0 / _ALIKE)


def _count(value: Value | None, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else max(1, otherwise)
