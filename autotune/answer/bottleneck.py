"""The bottleneck of a training loop: evidence from one run, and the verdict. Pure.

A step's time is split over kinds. Input time is what a cached batch removes. Blocked time is time in which
the
training thread neither runs nor waits for a CPU. The rest is work, split by what bounds each operation of one
step on this machine: arithmetic, memory traffic or launch overhead (`autotune.model.roofline`). The
comparison
of the loader alone with a cached batch follows J. Mohan et al., "Analyzing and mitigating data stalls in DNN
training", VLDB 14 (5), 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.model.rank_figures import RankFigures, Straggler, communication_frac, sentences
from autotune.model.roofline import Work
from autotune.model.trial import Stage

if TYPE_CHECKING:
    from autotune.model.config import Config
    from autotune.model.measurement import Measurement
    from autotune.model.study import Study
    from autotune.model.trial import Trial

KINDS = ("input", "transfer", "compute", "memory", "overhead", "sync", "communication")
"""Possible bottlenecks of a step; communication only if several processes train together."""

NAMES: Mapping[str, str] = {
    "input": "input: it waits for data",
    "transfer": "transfer: copying between host and device",
    "compute": "compute: arithmetic",
    "memory": "memory bandwidth",
    "overhead": "overhead: starting many small operations, and Python",
    "sync": "synchronisation: the training thread is blocked",
    "communication": "communication: it waits for the other processes",
    "device": "the device: it computes nearly all the time",
    "host": "the host: the device has nothing to do, and hardly any data is late",
    "balanced": "nothing alone: it is balanced",
    "unclear": "not clear",
}
"""Kind -> its name for the user."""

PREFIX = "why_"
"""Prefix of the probe's figures in `Measurement.extra`."""

LEAST_SHARE = 0.35
"""Share of a step below which a kind is not the bottleneck."""
LEAD = 0.10
"""Lead, as a share of the step, that the largest kind needs over the second."""
LEAST_KNOWN = 0.6
"""Share of the step that must be accounted for to call it balanced."""
LEAST_EXPLAINED = 0.08
"""Share of the work's time that the counted operations must explain before they may divide it."""
WAITS_ALONE = 0.5
"""Without a probe: share of waiting for data from which the loop is input-bound."""
BUSY_ALONE = 0.8
"""Without a probe: share of device busy time from which a step is device-bound."""
IDLE_ALONE = 0.5
"""Without a probe: share of device idle time from which a step is host-bound if little data is late."""
LATE_AT_MOST = 0.15
"""Largest share of waiting for data at which loader and host can be distinguished."""
IMBALANCE_FRAC = 0.25
"""Share of the work in which the main thread normally waits for other threads within operations."""
_READS_EVERY_STEP = 0.5
"""Value reads per step from which the host is blocked in every step or every other one."""
_APART = 0.15
"""Difference between two estimates of the input share, in shares of a step, that is worth explaining."""
MOVES_MUCH, MULTIPLIES_MUCH = 0.65, 0.35
"""Share of the memory bandwidth, and of tensor unit time, while the device computes, from which it is bound
by memory or by arithmetic. Used if operations are not counted one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Figures of one run; None if not measured. Seconds are per optimizer step.

    Args:
        step_s: Of the real loop.
        wait_frac: Share of `step_s` spent waiting for the next batch.
        replay_step_s: The same loop on one cached batch.
        drain_step_s: Time in which the loader alone produces the batches of one step.
        phases_s: ``forward``, ``loss`` (up to the backward pass), ``backward``, ``optimizer``, ``host``
            (the rest), on a cached batch, without waiting for a CPU.
        blocked_s: Time of each phase in which the training thread neither ran nor waited for a CPU.
        work: Of the operations of one step; None if they were not counted.
        flops: Floating-point operations of one step.
        ops: Number of operations of one step.
        reads: Values that one step read from tensors (`.item()` and the like).
        peak_flops_per_s: Of a matrix product on this machine, in the dtype that most of them have.
        cpu_frac: CPU time of the process over wall time and CPUs, on a cached batch.
        threads: PyTorch's intra-op threads.
        queue_frac: Share of a step of the real loop that the training thread waited for a CPU.
        replay_queue_frac: The same on a cached batch.
        compiled: The code was compiled, so its operations cannot be counted one by one.
        contended: Other processes took CPU time that the run could have used.
        collectives: Collective operations of one step.
        on_device: An accelerator trains; waiting for it is waiting for the script's own work.
        busy_frac: Share of the real loop's time in which the device computes, by its own counters.
        tensor_frac: Share of the time in which its tensor units compute.
        dram_frac: Share of its memory bandwidth in use.
        start_s: Launch time of one operation.
        ranks: Figures of each rank, if several processes train together.
        straggler: The rank that the others wait for.
    """

    step_s: float
    wait_frac: float
    replay_step_s: float | None = None
    drain_step_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict[str, float])
    blocked_s: Mapping[str, float] = field(default_factory=dict[str, float])
    work: Work | None = None
    flops: float | None = None
    ops: float | None = None
    reads: float | None = None
    peak_flops_per_s: float | None = None
    cpu_frac: float | None = None
    threads: int = 1
    queue_frac: float = 0.0
    replay_queue_frac: float = 0.0
    compiled: bool = False
    contended: bool = False
    collectives: float | None = None
    on_device: bool = False
    busy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    start_s: float | None = None
    ranks: tuple[RankFigures, ...] = ()
    straggler: Straggler | None = None

    @property
    def communication_frac(self) -> float | None:
        """Share of a step in which a rank is blocked in communication, averaged over ranks."""
        return communication_frac(self.ranks)

    @property
    def probed(self) -> bool:
        """Whether a probe split the step into phases."""
        return bool(self.phases_s)

    @property
    def utilisation(self) -> float | None:
        """Achieved FLOP/s over the measured peak, on a cached batch; None if either is unknown."""
        period_s = sum(self.phases_s.values()) or self.replay_step_s
        if not self.flops or not self.peak_flops_per_s or not period_s:
            return None
        return self.flops / period_s / self.peak_flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A verdict on what bounds a training loop.

    Args:
        kind: One of `KINDS`, ``balanced`` or ``unclear``; without a probe also ``device`` or ``host``, if the
            device counters only show which of the two waits for the other.
        shares: Kind -> share of a step's time. The rest up to 1 is unknown.
        reasons: Whole sentences: the evidence, then what was not measured.
        evidence: None if the config was never measured.
    """

    kind: str
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    reasons: tuple[str, ...] = ()
    evidence: Evidence | None = None

    @property
    def host_frac(self) -> float | None:
        """Share of a step outside forward, loss, backward and optimizer: the bound for host-side changes."""
        seen = self.evidence
        if seen is None or not seen.phases_s:
            return None
        step_s = max(seen.step_s * (1.0 - min(0.95, seen.queue_frac)), 1e-12)
        return min(1.0, seen.phases_s.get("host", 0.0) / step_s)

    @property
    def input_frac_at_most(self) -> float | None:
        """Largest share of a step that a faster input pipeline can save; None without a cached-batch run.

        The wait alone is no bound, as data workers also take cores from the training.
        """
        seen = self.evidence
        if seen is None or seen.replay_step_s is None:
            return None
        step_s = max(seen.step_s * (1.0 - min(0.95, seen.queue_frac)), 1e-12)
        replay_s = seen.replay_step_s * (1.0 - min(0.95, seen.replay_queue_frac))
        return min(1.0, max(seen.wait_frac, 1.0 - replay_s / step_s))


def evidence_of(measurement: Measurement) -> Evidence:
    """Return the evidence in a run's figures."""
    extra = {k.removeprefix(PREFIX): v for k, v in measurement.extra.items() if k.startswith(PREFIX)}

    def named(prefix: str) -> dict[str, float]:
        return {
            k.removeprefix(prefix).removesuffix("_s"): v for k, v in extra.items() if k.startswith(prefix)
        }

    work = None
    if "work_compute_s" in extra:
        work = Work(
            compute_s=extra["work_compute_s"],
            memory_s=extra.get("work_memory_s", 0.0),
            overhead_s=extra.get("work_overhead_s", 0.0),
            transfer_s=extra.get("work_transfer_s", 0.0),
        )
    return Evidence(
        step_s=measurement.step_time_s.value,
        wait_frac=measurement.data_wait_frac,
        replay_step_s=extra.get("replay_step_s"),
        drain_step_s=extra.get("drain_step_s"),
        phases_s=named("phase_"),
        blocked_s=named("blocked_"),
        work=work,
        flops=extra.get("flops"),
        ops=extra.get("ops"),
        reads=extra.get("reads"),
        peak_flops_per_s=extra.get("peak_flops_per_s"),
        cpu_frac=extra.get("cpu_frac"),
        threads=int(extra.get("threads", 1)),
        queue_frac=measurement.contamination.run_queue_frac,
        replay_queue_frac=extra.get("replay_queue_frac", 0.0),
        compiled=bool(extra.get("compiled", 0.0)),
        contended="cpu_contended" in measurement.contamination.flags,
        collectives=extra.get("collectives"),
        on_device=measurement.memory.allocator is not None,
        busy_frac=measurement.extra.get("device_busy_frac"),
        tensor_frac=measurement.extra.get("device_tensor_frac"),
        dram_frac=measurement.extra.get("device_dram_frac"),
        start_s=extra.get("start_s"),
        ranks=measurement.ranks,
        straggler=measurement.straggler,
    )


def judge(seen: Evidence) -> Bottleneck:
    """Return the verdict on what one run showed."""
    if not seen.probed:
        return _unprobed(seen)
    shares = _shares(seen)
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    (top, most), (_, next_) = ranked[0], ranked[1]
    if most >= LEAST_SHARE and most - next_ >= LEAD:
        kind = top
    elif sum(shares.values()) >= LEAST_KNOWN:
        kind = "balanced"
    else:
        kind = "unclear"
    return Bottleneck(kind=kind, shares=shares, reasons=tuple(_reasons(seen, shares)), evidence=seen)


def _unprobed(seen: Evidence) -> Bottleneck:
    """Return the verdict on a run without a probe: its waits for data and its device's busy time."""
    waits = seen.wait_frac
    shares, kind = {"input": waits}, "unclear"
    exchanges = seen.communication_frac
    if exchanges is not None:
        shares["communication"] = exchanges
    if exchanges is not None and exchanges >= LEAST_SHARE and exchanges - waits >= LEAD:
        kind = "communication"
    elif waits >= WAITS_ALONE:
        kind = "input"
    elif seen.on_device and seen.busy_frac is not None:
        busy = min(seen.busy_frac, 1.0 - waits)
        found = _device_shares(seen, busy, waits, seen.step_s)
        if busy >= BUSY_ALONE:
            top, other = sorted(("memory", "compute"), key=lambda k: -found[k])
            kind = top if found[top] - found[other] >= LEAD else "device"
            shares[kind] = busy
        elif waits <= LATE_AT_MOST and 1.0 - waits - busy >= IDLE_ALONE:
            kind = "host"
            shares[kind] = 1.0 - waits - busy
    return Bottleneck(
        kind=kind,
        shares=shares,
        reasons=(_wait_text(seen), *sentences(seen.ranks, seen.straggler), *_device_texts(seen)),
        evidence=seen,
    )


def _shares(seen: Evidence) -> dict[str, float]:
    """Return kind -> share of a step of the real loop."""
    # CPU time taken by other processes is not part of the script's bottleneck.
    step_s = max(seen.step_s * (1.0 - min(0.95, seen.queue_frac)), 1e-12)
    input_s = seen.wait_frac * step_s
    if seen.replay_step_s is not None:
        replay_s = seen.replay_step_s * (1.0 - min(0.95, seen.replay_queue_frac))
        # Other load on the machine can bias either estimate: use their mean.
        input_s = 0.5 * (input_s + max(0.0, step_s - replay_s))
    input_s = min(input_s, step_s)
    if seen.on_device and seen.busy_frac is not None:
        return _device_shares(seen, seen.busy_frac, input_s / step_s, step_s)
    phases_s = sum(seen.phases_s.values())
    scale = (step_s - input_s) / phases_s if phases_s > 0 else 0.0
    work_s = phases_s - seen.phases_s.get("host", 0.0)
    blocked_host_s = min(seen.blocked_s.get("host", 0.0), seen.phases_s.get("host", 0.0))
    blocked_work_s = min(math.fsum(v for k, v in seen.blocked_s.items() if k != "host"), work_s)
    normal_s = IMBALANCE_FRAC * work_s if seen.threads > 1 else 0.0
    # Within its own work a thread waits for the device, or for the processes it exchanges with.
    lost_s = 0.0 if seen.on_device else max(0.0, blocked_work_s - normal_s)
    with_others = bool(seen.collectives)
    active_s = max(0.0, work_s - lost_s)
    host_s = seen.phases_s.get("host", 0.0) - blocked_host_s
    parts = {
        "sync": blocked_host_s + (0.0 if with_others else lost_s),
        "communication": lost_s if with_others else 0.0,
        "overhead": host_s,
    }
    work = seen.work
    if work is not None and work.total_s >= LEAST_EXPLAINED * active_s and work.total_s > 0:
        each = active_s / work.total_s
        parts["compute"] = work.compute_s * each
        parts["memory"] = work.memory_s * each
        parts["transfer"] = work.transfer_s * each
        parts["overhead"] += work.overhead_s * each
    shares = {kind: parts.get(kind, 0.0) * scale / step_s for kind in _kinds(seen)}
    shares["input"] = input_s / step_s
    return shares


def _kinds(seen: Evidence) -> tuple[str, ...]:
    """Return the kinds that can bind this run; one process alone has no communication."""
    # Device counters do not report the time of collectives.
    is_timed = seen.collectives and not seen.on_device
    return KINDS if is_timed else tuple(kind for kind in KINDS if kind != "communication")


def _device_shares(seen: Evidence, busy: float, waits: float, step_s: float) -> dict[str, float]:
    """Return kind -> share of a step by the device's own counters, measured in the real loop.

    While the device computes, its operations bound the step. While it is idle and no data is late, it waits
    for the host: the host launches operations too slowly, or blocks on reading values.
    """
    busy = min(busy, 1.0 - waits)
    idle = 1.0 - waits - busy
    shares = {**dict.fromkeys(_kinds(seen), 0.0), "input": waits}
    starting = None if seen.ops is None or seen.start_s is None else seen.ops * seen.start_s / step_s
    if starting is not None and starting >= busy:
        shares["overhead"] = idle
    elif seen.reads is not None and seen.reads >= _READS_EVERY_STEP:
        shares["sync"] = idle
    # Collectives count as busy time but are not part of `work`.
    work = None if seen.collectives else seen.work
    done_s = 0.0 if work is None else work.compute_s + work.memory_s + work.transfer_s
    if work is not None and done_s > 0.0:
        shares["compute"] = busy * work.compute_s / done_s
        shares["memory"] = busy * work.memory_s / done_s
        shares["transfer"] = busy * work.transfer_s / done_s
    elif seen.dram_frac is not None and seen.dram_frac >= MOVES_MUCH * busy:
        shares["memory"] = busy
    elif seen.tensor_frac is not None and seen.tensor_frac >= MULTIPLIES_MUCH * busy:
        shares["compute"] = busy
    return shares


def _reasons(seen: Evidence, shares: Mapping[str, float]) -> list[str]:
    reasons = [_wait_text(seen)]
    if seen.replay_step_s is not None:
        with_batch, real = _ms(seen.replay_step_s), _ms(seen.step_s)
        reasons.append(f"On one cached batch a step takes {with_batch} in place of {real}.")
        # With other load on the machine the two estimates can differ much; explain the mean then.
        saved = max(0.0, 2.0 * shares.get("input", 0.0) - seen.wait_frac)
        if abs(saved - seen.wait_frac) > _APART:
            waits, saves = _percent(seen.wait_frac), _percent(saved)
            reasons[-1] += (
                f" By waiting data takes {waits} of a step, by that batch {saves}: their mean is used."
            )
    if seen.drain_step_s is not None:
        reasons.append(f"The loader alone has the data of a step ready in {_ms(seen.drain_step_s)}.")
    phases = [
        f"{name} {_ms(seconds)}" for name, seconds in seen.phases_s.items() if seconds >= 0.01 * seen.step_s
    ]
    if phases:
        reasons.append(f"Of such a step: {', '.join(phases)}.")
    reasons += _device_texts(seen)
    if shares.get("communication", 0.0) >= 0.05:
        reasons.append(
            f"{100 * shares['communication']:.0f} % of the time it is blocked in work that "
            f"exchanges with other processes, {seen.collectives or 0.0:.0f} times a step."
        )
    if shares.get("sync", 0.0) >= 0.05 and seen.busy_frac is not None:
        reasons.append(
            f"{100 * shares['sync']:.0f} % of the time the device has nothing to do: the host waits for "
            "values that it reads, and starts nothing meanwhile."
        )
    elif shares.get("sync", 0.0) >= 0.05:
        reasons.append(
            f"{100 * shares['sync']:.0f} % of the time the training thread is blocked and no data is late: "
            "it sleeps, or waits for a lock, a file or another thread."
        )
    if seen.utilisation is not None:
        rate = seen.utilisation * (seen.peak_flops_per_s or 0.0)
        reasons.append(
            f"It does {_flops(rate)}, {100 * seen.utilisation:.0f} % of what a matrix product does here."
        )
    if seen.work is not None and seen.ops:
        reasons.append(_work_text(seen, seen.work))
    elif seen.compiled:
        reasons.append("Operations inside compiled code are not counted one by one.")
    elif seen.work is None:
        reasons.append("Its operations were not counted.")
    if seen.reads:
        times = "once" if round(seen.reads) == 1 else f"{seen.reads:.0f} times"
        reasons.append(f"A step reads values out of tensors {times}.")
    if seen.contended and seen.threads > 1:
        reasons.append(
            "Other processes used the CPUs meanwhile, which also delays threads that wait for each "
            "other: these shares are approximate."
        )
    if seen.cpu_frac is not None:
        reasons.append(f"It keeps {100 * seen.cpu_frac:.0f} % of the CPUs busy meanwhile.")
    return reasons


def _device_texts(seen: Evidence) -> list[str]:
    """Return a sentence about the device's own counters in the real loop, if there are any."""
    shares = [
        f"{what} {100 * share:.0f} %"
        for what, share in (
            ("it computes", seen.busy_frac),
            ("its tensor units do", seen.tensor_frac),
            ("of its memory's bandwidth it uses", seen.dram_frac),
        )
        if share is not None
    ]
    return [f"By the device's own counters, of the time: {', '.join(shares)}."] if shares else []


def _work_text(seen: Evidence, work: Work) -> str:
    total = work.total_s or 1.0
    return (
        f"Of its {seen.ops:.0f} operations a step, by the time they take at the least: "
        f"{100 * work.compute_s / total:.0f} % are bound by arithmetic, {100 * work.memory_s / total:.0f} % "
        f"by memory bandwidth, {100 * work.overhead_s / total:.0f} % by being started at all."
    )


def _wait_text(seen: Evidence) -> str:
    return f"It waits for data {100 * seen.wait_frac:.0f} % of its time."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _flops(rate: float) -> str:
    for unit, size in (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g} FLOP/s"


def bottleneck(study: Study, config: Config) -> Bottleneck:
    """Return the verdict on a config, from its probe if it has one, else from its last other run."""
    probes = [m for m in (t.measurement for t in _probed(study) if t.config == config) if m is not None]
    if probes:
        return judge(_with_flops(study, config, evidence_of(probes[-1])))
    runs = [m for m in (t.measurement for t in study.of(config)) if m is not None]
    if not runs:
        return Bottleneck(kind="unclear", reasons=("It was not measured.",))
    seen = evidence_of(runs[-1])
    run = study.facts.run if study.facts is not None else None
    if run is not None and run.ranks > 1:
        # A device that waits for other ranks within a collective counts as busy.
        seen = replace(seen, busy_frac=None)
    found = judge(seen)
    return Bottleneck(
        kind=found.kind,
        shares=found.shares,
        reasons=(*found.reasons, why_not_probed(study, config)),
        evidence=found.evidence,
    )


def _probed(study: Study) -> list[Trial]:
    """Return the diagnosis runs, without those slowed down by Nsight Systems."""
    return [t for t in study.finished(Stage.DIAGNOSE) if t.fidelity.explains]


def _with_flops(study: Study, config: Config, seen: Evidence) -> Evidence:
    """Return the evidence of a compiled run with the baseline's operation count, scaled by samples."""
    if seen.flops is not None or config.is_baseline:
        return seen
    own = [t.measurement for t in _probed(study) if t.config.is_baseline and t.measurement]
    probed = [t.measurement for t in _probed(study) if t.config == config and t.measurement]
    if not own or not probed or own[-1].effective_batch <= 0:
        return seen
    base = evidence_of(own[-1])
    if base.flops is None:
        return seen
    ratio = probed[-1].effective_batch / own[-1].effective_batch
    peak = seen.peak_flops_per_s or base.peak_flops_per_s
    return replace(seen, flops=base.flops * ratio, peak_flops_per_s=peak)


def why_not_probed(study: Study, config: Config) -> str:
    """Return a sentence that explains why this config has no detailed probe."""
    tried = [t.failure for t in _probed(study) if t.config == config and t.failure is not None]
    if tried:
        return f"The detailed probe ended early: {tried[-1].message.rstrip('.')}."
    if not study.spec.why:
        return "Other limits were not probed."
    if study.facts is not None and study.facts.run is not None and study.facts.run.without_torch:
        return "Other limits are not known: the script does not use PyTorch."
    if study.spec.budget.trials is not None:
        return "Other limits were not probed, as the number of trials is limited."
    return "Other limits were not probed: the budget was too short for it."


def shown(verdict: Bottleneck, *, most: int = 3) -> Sequence[str]:
    """Return the strongest evidence for a verdict, for a screen with little room."""
    reasons = list(verdict.reasons)
    if verdict.kind == "sync":
        reasons.sort(key=lambda r: "blocked" not in r)
    elif verdict.kind in ("compute", "memory", "overhead", "transfer"):
        first = ("operations", "matrix product", "approximate")
        reasons.sort(key=lambda r: not any(word in r for word in first))
    return reasons[:most]
