"""Runner without processes: runs are drawn from a recorded table, on a virtual clock.

Cost and results of a run are those of a recorded process: start-up, compile, steps, memory, loss, failures.
`autotune.testing.table` defines tables, `docs/search.md` the limits of a replay.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.clock import Clock, SimulatedClock
from autotune.errors import AutotuneError
from autotune.launch.fork_pool import MOST_SERVERS, compiles, in_order
from autotune.launch.runner import Runner, TrialResult
from autotune.model.measurement import Contamination, LossPoint, Measurement
from autotune.model.trial import Failure, FailureKind, Family, StartMode
from autotune.statistics.intervals import Block, window_estimate
from autotune.statistics.intervals import is_tight as is_narrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.model.config import Config
    from autotune.model.measurement import Estimate
    from autotune.model.trial import Assignment, Fidelity, Outcome
    from autotune.testing.table import Blocks, Table, TableRow

_FEWEST_BLOCKS = 3
_BEYOND_DOUBT = 2.0
_LOOK_EVERY = 1.1
_RUN_SHARE = 0.25
_MOST_BLOCKS = 20_000
_STARTS = ("epoch_starts",)


class NotRecorded(AutotuneError):
    """A replay requested a configuration outside its table: an error of the benchmark."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A recorded process, and whether its losses pair with those of other runs of the same seed."""

    row: TableRow
    is_paired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A replayed window, and the run up to its end.

    Args:
        blocks: Blocks of the window, in the order in which they were drawn.
        window_s: Seconds of the window.
        elapsed_s: Seconds of the window and of what came after it for the loss.
        samples: Samples of both.
        ended: Why the window ended.
    """

    blocks: tuple[Block, ...]
    window_s: float
    elapsed_s: float
    samples: int
    ended: str

    @property
    def steps(self) -> int:
        return sum(b.steps for b in self.blocks)


class ReplayRunner(Runner):
    """Runs assignments out of a table.

    The rules, all of them deterministic by `seed`:

    - *Which process.* An assignment's seed names one of the table's seeds (by a permutation of the
      replay's own), so runs that a search pairs by seed are runs of one recorded repeat. They have the same
      data order and the same drift of the machine. Of several such runs each is drawn once before any
      is drawn again. A draw depends only on (table, seed, config, assignment's seed, number of such requests
      before). So equal requests of different searches get equal results.
    - *The window* is a block bootstrap of that process: runs of consecutive blocks, drawn until the
      fidelity is satisfied, by the rules of a real window (`autotune.trial.measure.measured_run`). So windows
      may be shorter or longer than the recorded one.
    - *Cost*: the duration of the process, with its window replaced by the one drawn. Its compile is replaced
      by a cold one for the first use of a compile cache, by a warm one after that. Without a warm
      compile of the config, the table's median ratio of warm to cold is used.
    - *Failures* are as recorded, with their cost; one that reached its time limit costs the present limit. A
      run that would be longer than its deadline ends there.
    - *A fork* starts in `forked_start` of the time of the drawn process. The first of an environment waits
      for its server and takes as long as a fresh one. What it measures is what a fresh one would.
    - *The machine* has the speed of `machine` at the start of a run: all training in it is scaled by that.
    - A configuration outside of the table is `NotRecorded`: nothing is made up.

    Args:
        table: Recorded table. Runs lost for reasons of the machine, and disturbed ones if there are others of
            the same slot, are not drawn.
        seed: Seed of all draws.
        clock: Advanced by each run's duration; None: a new `SimulatedClock`.
        limit_bytes: A smaller machine: runs whose peak is above it end out of memory. 0: as recorded.
        forked_start: Start-up of a forked process over that of a fresh one.
        machine: Second of the clock -> speed of the machine relative to its usual one, in ln rate; None: as
            recorded.
    """

    def __init__(
        self,
        table: Table,
        *,
        seed: int = 0,
        clock: Clock | None = None,
        limit_bytes: int = 0,
        forked_start: float = 1.0,
        machine: Callable[[float], float] | None = None,
    ) -> None:
        self.clock = clock or SimulatedClock()
        self._machine = machine
        self._table = table
        self._seed = seed
        self._limit_bytes = limit_bytes
        self._forked_start = forked_start
        self._servers: dict[tuple[object, ...], None] = {}
        self._requested_keys: set[tuple[object, ...]] = set()
        self._rows = _rows_by_config(table)
        seeds = sorted({row.seed for rows in self._rows.values() for row in rows})
        self._seeds = random.Random(f"{table.header.table}/{seed}").sample(seeds, len(seeds))
        self._warm_share = _warm_share(table)
        self._requested: dict[tuple[Config, int], int] = {}
        self._compiled: set[str] = set()
        self._running = False
        self._stopped = False

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Play it and move the clock on; one end per segment, up to and including the first that fails.

        Raises:
            NotRecorded: The table holds no run of a config.
        """
        self._running, self._stopped = True, False
        begun_s = self.clock.now_s()
        try:
            for ended in self.play(assignment):
                self.clock.sleep(begun_s + ended.seconds - self.clock.now_s())
                if self._stopped:
                    failure = Failure(kind=FailureKind.KILLED_USER, message="ended by request")
                    yield replace(ended, outcome=failure)
                    return
                yield ended
        finally:
            self._running = False

    def play(self, assignment: Assignment) -> Iterator[TrialResult]:
        """Return the results without the clock; each is valid after `TrialResult.seconds`.

        Raises:
            NotRecorded: The table has no run of a config.
        """
        # The clock may be moved on between one segment and the next.
        first_s, begun_s = self.clock.now_s(), 0.0
        start_share = self._start_share(assignment)
        for segment in assignment.segments:
            at_s = first_s + begun_s
            outcome, seconds = self._outcome(segment.config, segment.fidelity, assignment, start_share, at_s)
            begun_s += seconds
            yield TrialResult(
                trial=segment.trial,
                outcome=outcome,
                seconds=begun_s,
                facts=self._table.header.facts.run,
                start=assignment.start,
            )
            if isinstance(outcome, Failure):
                return

    def stop(self) -> None:
        """End the running trial, if there is one, as ``killed_user``."""
        self._stopped = self._running

    # -- one run

    def _start_share(self, assignment: Assignment) -> float:
        """Return the share of a recorded start-up for this kind of start; servers as in `Forks`."""
        if assignment.start is not StartMode.FORK:
            return 1.0
        launch = assignment.launch
        plain = (launch.python, launch.options, False, *sorted(launch.env.items()))
        key = plain
        if compiles(launch):
            key = in_order(self._servers, self._requested_keys, plain, (*plain[:2], True, *plain[3:]))[0]
        is_there = key in self._servers
        self._servers.pop(key, None)
        self._servers[key] = None
        if len(self._servers) > MOST_SERVERS:
            del self._servers[next(iter(self._servers))]
        return self._forked_start if is_there else 1.0

    def _outcome(
        self, config: Config, fidelity: Fidelity, assignment: Assignment, start_share: float, at_s: float
    ) -> tuple[Outcome, float]:
        drawn, noise = self._draw(config, assignment.launch.seed)
        row = self._at(at_s, _started(drawn.row, start_share))
        if not row.is_ok:
            return _failed(row, fidelity)
        compile_s, is_cold = self._compile(row)
        start_s = (row.start_up_s or 0.0) + compile_s
        if start_s > min(fidelity.setup_s, fidelity.deadline_s):
            limit_s = min(fidelity.setup_s, fidelity.deadline_s)
            message = f"no step for {limit_s:.0f} s (before the first step)"
            return Failure(kind=FailureKind.TIMEOUT_PROGRESS, message=message, evidence={"steps": 0}), limit_s
        limits = [limit for limit in (assignment.memory_limit_bytes, self._limit_bytes) if limit]
        peak, limit = row.memory.peak_bytes or 0, min(limits, default=0)
        before_s = start_s + (row.warmup_s or 0.0)
        if limit and peak > limit:
            on_device = row.memory.device is not None or row.memory.allocator is not None
            return Failure(
                kind=FailureKind.OOM_CUDA if on_device else FailureKind.OOM_HOST,
                message=f"{peak / 2**30:.2f} GiB of {limit / 2**30:.2f} GiB that are allowed",
                evidence={"peak_bytes": peak},
            ), before_s
        unit = self._table.header.workload.unit
        warm_up = _samples_before(row)
        window = _window(row, fidelity, noise, unit=unit, before_samples=warm_up)
        rest_s = max(0.0, row.charged_s - (row.compile_s or 0.0) - (row.window_s or 0.0))
        seconds = rest_s + compile_s + window.elapsed_s
        if seconds > fidelity.deadline_s:
            message = f"not done after {fidelity.deadline_s:.0f} s"
            failure = Failure(kind=FailureKind.TIMEOUT_TOTAL, message=message, evidence={"steps": 0})
            return failure, fidelity.deadline_s
        allowed = [b for b in (row.memory.limit, *limits) if b]
        produced = 1.0 if row.produced_frac is None else row.produced_frac
        own_s = math.fsum(b.seconds for b in window.blocks)
        wait_s = math.fsum(b.wait_s for b in window.blocks)
        is_tight = window.ended == "tight"
        measured = Measurement(
            throughput=_scaled(window_estimate(window.blocks, unit=unit, is_stopped=is_tight), produced),
            step_time_s=_scaled(
                window_estimate(window.blocks, unit="s", per_step=True, is_stopped=is_tight),
                1 / produced if produced else 1.0,
            ),
            data_wait_frac=min(1.0, wait_s / own_s) if own_s else 0.0,
            memory=replace(row.memory, limit=min(allowed, default=None)),
            loss=self._trace(drawn, warm_up + window.samples, compile_s),
            compile_s=compile_s,
            cold_compile=is_cold,
            startup_s=row.start_up_s or 0.0,
            warmup_steps=row.warmup_steps or 0,
            steps=window.steps,
            window_s=window.window_s,
            effective_batch=row.effective_batch or 0.0,
            contamination=row.contamination or Contamination(),
            readings=row.readings,
            ended=window.ended,
            extra=_counters(row, window.steps),
        )
        return measured, seconds

    def _at(self, at_s: float, row: TableRow) -> TableRow:
        """Return the row scaled to the machine's speed at that second."""
        return row if self._machine is None else row.slowed(math.exp(-self._machine(at_s)))

    def _draw(self, config: Config, wanted: int) -> tuple[_Drawn, random.Random]:
        rows = self._rows.get(config, ())
        if not rows:
            raise _not_recorded(self._table, config)
        count = self._requested.get((config, wanted), 0)
        self._requested[config, wanted] = count + 1
        key = f"{self._table.header.table}/{self._seed}/{config.digest}/{wanted}"
        seed = self._seeds[wanted % len(self._seeds)]
        mine = [row for row in rows if row.seed == seed]
        pool = mine or list(rows)
        noise = random.Random(f"{key}/{count}")
        once = random.Random(key).sample(pool, len(pool))
        row = once[count] if count < len(once) else noise.choice(pool)
        return _Drawn(row, bool(mine)), noise

    def _compile(self, row: TableRow) -> tuple[float, bool]:
        """Seconds of this run's compile, and whether its cache was empty."""
        like = [r for r in self._rows[row.config] if r.is_ok and r.compile_s]
        if not like:
            return row.compile_s or 0.0, False
        cold = [r.compile_s or 0.0 for r in like if r.compile_cache == "cold"]
        warm = [r.compile_s or 0.0 for r in like if r.compile_cache == "warm"]
        key = row.compile_key or row.digest
        is_cold = key not in self._compiled
        self._compiled.add(key)
        if is_cold:
            return statistics.median(cold or warm or [row.compile_s or 0.0]), True
        return statistics.median(warm) if warm else self._warm_share * statistics.median(cold), False

    def _trace(self, drawn: _Drawn, seen: int, compile_s: float) -> tuple[LossPoint, ...]:
        """Return the recorded loss up to the replayed samples; empty if it could not be paired."""
        row = drawn.row
        if not drawn.is_paired or len(row.loss_samples) != len(row.loss_t_s):
            return ()
        shift_s = compile_s - (row.compile_s or 0.0)
        return tuple(
            LossPoint(samples=samples, loss=loss, t_s=max(0.0, t_s + shift_s))
            for samples, loss, t_s in zip(row.loss_samples, row.loss_values, row.loss_t_s, strict=True)
            if samples <= max(seen, row.loss_samples[0])
        )


def _not_recorded(table: Table, config: Config) -> NotRecorded:
    return NotRecorded(
        f"{table.header.table} holds no run of {config.text() or 'the unchanged script'}",
        hint="give the search the space of the table: autotune.testing.replay does",
    )


# Reading the table ----------------------------------------------------------------------------


def _rows_by_config(table: Table) -> dict[Config, tuple[TableRow, ...]]:
    found: dict[Config, list[TableRow]] = {}
    for _, row in sorted(table.settled().items()):
        lost = not row.is_ok and FailureKind.named(row.kind).family in (Family.LOST, Family.CANCELLED)
        if not lost and (not row.is_ok or len(row.blocks)):
            found.setdefault(row.config, []).append(row)
    clean = {c: [r for r in rows if not r.is_disturbed] for c, rows in found.items()}
    return {config: tuple(clean[config] or rows) for config, rows in found.items()}


def _warm_share(table: Table) -> float:
    """Return the ratio of a warm to a cold compile on this table; 1 without data."""
    seen: dict[Config, dict[str, list[float]]] = {}
    for row in table.rows:
        if row.is_ok and row.compile_s and row.compile_cache in ("cold", "warm"):
            seen.setdefault(row.config, {}).setdefault(row.compile_cache, []).append(row.compile_s)
    shares = [
        statistics.median(of["warm"]) / statistics.median(of["cold"])
        for of in seen.values()
        if {"warm", "cold"} <= of.keys()
    ]
    return min(1.0, statistics.median(shares)) if shares else 1.0


def _started(row: TableRow, share: float) -> TableRow:
    """Return the row with its start-up scaled by this factor."""
    saved_s = (1.0 - share) * (row.start_up_s or 0.0)
    if not saved_s:
        return row
    return replace(row, start_up_s=share * (row.start_up_s or 0.0), charged_s=row.charged_s - saved_s)


def _failed(row: TableRow, fidelity: Fidelity) -> tuple[Failure, float]:
    kind = FailureKind.named(row.kind)
    seconds = min(row.charged_s, fidelity.deadline_s)
    if kind is FailureKind.TIMEOUT_TOTAL:
        seconds = fidelity.deadline_s
    elif kind is FailureKind.TIMEOUT_PROGRESS:
        seconds = min(fidelity.deadline_s, fidelity.setup_s)
    return Failure(kind=kind, message=row.message or row.kind, evidence=dict(row.evidence)), seconds


def _samples_before(row: TableRow) -> int:
    """Return the samples before the window, according to the loss trace."""
    if not row.loss_samples:
        return 0
    return max(0, row.loss_samples[-1] - sum(row.blocks.num_samples))


def _counters(row: TableRow, steps: int) -> dict[str, float]:
    """Counters of the process; those that count within the window shrink and grow with it."""
    recorded = sum(row.blocks.num_steps)
    share = steps / recorded if recorded else 1.0
    return {name: value * share if name in _STARTS else value for name, value in row.counters.items()}


# A window -------------------------------------------------------------------------------------


def _window(
    row: TableRow, fidelity: Fidelity, noise: random.Random, *, unit: str, before_samples: int
) -> _Window:
    """Blocks drawn until the fidelity is satisfied; those that are drawn for the loss alone only cost."""
    recorded: Blocks = row.blocks
    plain, total_s = recorded.plain(), recorded.elapsed_s
    drawn: list[int] = []
    elapsed_s, steps, samples, look_at = 0.0, 0, 0, 0
    ended, window_s, blocks = "", 0.0, 0
    for index in _indices(len(plain), noise):
        drawn.append(index)
        elapsed_s += total_s[index]
        steps += plain[index].steps
        samples += plain[index].samples
        if not ended and elapsed_s >= fidelity.max_window_s and len(drawn) >= _FEWEST_BLOCKS:
            ended = "limit"
        due = len(drawn) >= look_at and len(drawn) >= _FEWEST_BLOCKS
        if not ended and due and elapsed_s >= fidelity.min_window_s and steps >= fidelity.min_steps:
            look_at = math.ceil(_LOOK_EVERY * len(drawn))
            ended = _enough([plain[i] for i in drawn], fidelity, unit)
        if len(drawn) >= _MOST_BLOCKS:
            ended = ended or "limit"
        if ended and not blocks:
            window_s, blocks = elapsed_s, len(drawn)
        enough_loss = before_samples + samples >= fidelity.loss_samples
        if ended and (enough_loss or len(drawn) >= _MOST_BLOCKS):
            break
    return _Window(
        blocks=tuple(plain[i] for i in drawn[:blocks]),
        window_s=window_s,
        elapsed_s=elapsed_s,
        samples=samples,
        ended=ended,
    )


def _indices(count: int, noise: random.Random) -> Iterator[int]:
    """Runs of neighbours, round the corner where need be, so that waves stay waves."""
    length = max(1, math.ceil(_RUN_SHARE * count))
    while True:
        first = noise.randrange(count)
        for offset in range(length):
            yield (first + offset) % count


def _enough(blocks: Sequence[Block], fidelity: Fidelity, unit: str) -> str:
    """Return why the window may end before its limit; empty if it may not."""
    if is_narrow(blocks, fidelity.target_width, unit=unit):
        return "tight"
    estimate = window_estimate(blocks, unit=unit)
    doubt = _BEYOND_DOUBT * (estimate.high - estimate.value)
    rated = unit == "samples/s"
    return "dominated" if rated and estimate.value + doubt < fidelity.dominated_below else ""


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return replace(
        estimate, value=estimate.value * factor, low=estimate.low * factor, high=estimate.high * factor
    )
