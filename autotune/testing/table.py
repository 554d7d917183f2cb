"""One recorded grid: results of every configuration of a workload on one device, run by run.

A table is a file of JSON lines: the header first, then one row per process, failures included. After an
extension the header is repeated and applies from then on. Rows are raw: all blocks are retained, and no mean
is stored, because means are computed. None is "not measured", never 0. `experiments/grids/record.py` writes
tables; replays read them. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.errors import StoreError, UsageError
from autotune.model import wire
from autotune.model.config import Config, Value
from autotune.model.facts import Facts
from autotune.model.measurement import Contamination, Estimate, Memory, Reading
from autotune.model.study import SpaceRequest
from autotune.model.trial import Fidelity
from autotune.statistics.intervals import Block, window_estimate

SCHEMA_VERSION = 1
OK = "ok"

ASIDE = "aside"
"""Flag of a step that is no training as a whole (a compile, an evaluation without an end): a block alone."""

_SPOILED = frozenset({ASIDE, "foreign_gpu", "throttled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPart:
    """The recorded workload.

    Args:
        name: Stem of the script's file name.
        script_sha256: Digest of its bytes.
        args: Its arguments.
        unit: Unit of the throughput: ``samples/s``, or ``steps/s`` if samples are not confirmed.
        steps_per_epoch: Batches of the training loader, None if unknown.
        planned_steps: Optimizer steps of the real run, None if unknown.
        effective_batch: Samples per optimizer step of the unchanged script, None if unknown.
    """

    name: str
    script_sha256: str
    args: tuple[str, ...] = ()
    unit: str = "samples/s"
    steps_per_epoch: int | None = None
    planned_steps: int | None = None
    effective_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobPart:
    """One knob of the grid as it was for this script: see `autotune.model.space.Dimension`."""

    knob: str
    values: tuple[Value, ...]
    own: Value | None
    effect: str
    ordinal: bool = False
    derived: bool = False
    changes_rng_streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolPart:
    """Measuring protocol of all rows.

    Args:
        fidelity: Window and limits of every process.
        seeds: Seeds of the repeats, in order.
        repeats: Processes per configuration.
        order: Rule for the choice of neighbours.
        sentinel_every: Number of runs between two runs of the unchanged script.
        remeasured: Largest number of repeats of a disturbed run.
        isolation: ``overlay`` or ``redirect``.
    """

    fidelity: Fidelity
    seeds: tuple[int, ...]
    repeats: int
    order: str = "a random one per repeat"
    sentinel_every: int = 0
    remeasured: int = 0
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Configurations that joined a table after rows were recorded.

    Args:
        first: Index of the first of them in the header's `configs`.
        repeat: Repeat that had begun without them; in earlier ones they come last.
    """

    first: int
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeader:
    """Properties of all rows; identity first.

    Args:
        table: ``<workload>/<device>``.
        grid_sha256: Digest of the recorded grid file.
        recorded: Date of the first row, ``YYYY-MM-DD``.
        commit: Commit of the recorder, empty outside of a repository.
        dirty: The recorder's files differed from that commit.
        autotune: Version.
        request: Requested knobs and values; with `facts` it builds the space again.
        facts: Machine, script and the script's own run; paths in it are bare names.
        space: The knobs for this script.
        refusals: Knob -> why it was not varied.
        configs: All measured configs, the unchanged script included: the candidates of every replayed search.
        left_out: Requested configuration (as text) -> why it is not possible, or equals another one.
        device: Accelerator, or the CPU without one.
        versions: Versions of Python, torch and others in the run.
        environment: Variables that may change the speed, if set.
        growths: Later extensions, in order; the file repeats the header for each.
    """

    table: str
    grid_sha256: str
    recorded: str
    device: str
    workload: WorkloadPart
    request: SpaceRequest
    facts: Facts
    space: tuple[KnobPart, ...]
    configs: tuple[Config, ...]
    protocol: ProtocolPart
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    commit: str = ""
    dirty: bool = False
    autotune: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    growths: tuple[Growth, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def identity(self) -> dict[str, str]:
        """Return the common properties of a table's rows, by name: a change of any means another table."""
        host = self.facts.host
        flags = " ".join(sorted(host.cpu_flags))
        return {
            "grid": self.grid_sha256,
            "script": self.workload.script_sha256,
            "arguments": " ".join(self.workload.args),
            "device": f"{self.device}, {host.cpus} CPUs, {host.cpu_model}, {flags}",
            "versions": ", ".join(f"{name} {self.versions.get(name, '')}" for name in ("python", "torch")),
            "autotune": self.autotune,
            "environment": " ".join(f"{k}={v}" for k, v in sorted(self.environment.items())),
            "schema": str(self.schema_version),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Consecutive steps of a window, column by column; all columns have one length.

    Args:
        num_steps: Optimizer steps.
        num_samples: Samples consumed.
        elapsed_s: Wall time, everything included.
        aside_s: Of it, evaluation that counts as no training.
        wait_s: Of it, waiting for batches.
        run_delay_s: Of it, the main thread could run and had no CPU; None where the kernel
            does not report it.
        flags: Words with blanks between: ``evaluation``, ``compile``, ``new_shape``, ``gc``,
            ``loader_start``, ``allocator``; ``aside``, ``foreign_gpu``, ``throttled`` spoil a block.
    """

    num_steps: tuple[int, ...] = ()
    num_samples: tuple[int, ...] = ()
    elapsed_s: tuple[float, ...] = ()
    aside_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    run_delay_s: tuple[float | None, ...] = ()
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.num_steps)

    def slowed(self, factor: float) -> Blocks:
        """Return the same steps, with all times scaled."""
        return replace(
            self,
            elapsed_s=tuple(factor * x for x in self.elapsed_s),
            aside_s=tuple(factor * x for x in self.aside_s),
            wait_s=tuple(factor * x for x in self.wait_s),
            run_delay_s=tuple(None if x is None else factor * x for x in self.run_delay_s),
        )

    def clean(self) -> tuple[bool, ...]:
        """Return which blocks are used for an estimate."""
        return tuple(not _SPOILED & set(words.split()) for words in self.flags)

    def plain(self) -> tuple[Block, ...]:
        """Return the blocks for statistics, with disturbed ones marked."""
        columns = (self.elapsed_s, self.aside_s, self.num_samples, self.num_steps, self.wait_s, self.clean())
        return tuple(
            Block(seconds=elapsed_s - aside_s, samples=samples, steps=steps, wait_s=wait_s, clean=clean)
            for elapsed_s, aside_s, samples, steps, wait_s, clean in zip(*columns, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One process run.

    Args:
        config: Its config.
        digest: Digest of the config.
        repeat: From 0.
        order: Index in the order of its repeat, from 0; with `repeat` it names the slot.
        attempt: From 1; later ones repeat a slot whose run was disturbed or lost.
        sentinel: The unchanged script, run between the others to detect drift of the machine.
        session: Sitting of the recorder that made it, from 1.
        began: Start, UTC, ``YYYY-MM-DDTHH:MM:SSZ``.
        seed: Offset of every random seed.
        commit: Commit of the recorder, with a ``+`` for changed files.
        source: ``FRESH``: the process measured nothing else.
        start_mode: ``cold``: the interpreter was started for it.
        kind: ``ok`` or a label of `autotune.model.trial.FailureKind`.
        phase: Phase of a failure, if known.
        message: Message of a failure.
        evidence: Evidence of a failure: ``knob`` and ``how`` of a rejection, ``error``.
        readings: Readings of the config's knobs.
        found: Readable values of the other knobs.
        effective_batch: Samples per optimizer step in the window.
        start_up_s: From the start of the process to the end of the first step, compile excluded.
        compile_s: Seconds of compiling before the window.
        compile_cache: ``cold``, ``warm``, or ``none`` without compiling.
        compile_key: Key of the cache.
        warmup_s: From the end of the first step to the window, compile excluded.
        warmup_steps: Steps before the window.
        window_s: Length of the window.
        teardown_s: From the end of the window to the end of the process.
        charged_s: Wall time of the whole process: its cost in a search.
        deadline_s: Time limit.
        ended: Reason for the end of measuring; see `autotune.model.measurement.Measurement`.
        steady: ``steady``, ``drifting`` or ``no_steady_state``; empty for failures.
        produced_frac: Share of the consumed batches that was also produced inside the window: below 1 if an
            earlier queue was still draining.
        blocks: Raw blocks.
        memory: Peaks.
        loss_samples: Samples consumed, for every point of the loss trace.
        loss_values: The loss there, at full precision.
        loss_t_s: Seconds since the first step began.
        contamination: Other use of the machine.
        counters: Counters of the training process: recompiles, graph breaks, faults.
        is_disturbed: Another process had the machine or the device; a reading with a neighbour in it.
    """

    config: Config
    digest: str
    repeat: int
    order: int
    attempt: int = 1
    sentinel: bool = False
    session: int = 1
    began: str = ""
    seed: int = 0
    commit: str = ""
    source: str = "FRESH"
    start_mode: str = "cold"
    kind: str = OK
    phase: str = ""
    message: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])
    readings: tuple[Reading, ...] = ()
    found: Mapping[str, Value] = field(default_factory=dict[str, Value])
    effective_batch: float | None = None
    start_up_s: float | None = None
    compile_s: float | None = None
    compile_cache: str | None = None
    compile_key: str = ""
    warmup_s: float | None = None
    warmup_steps: int | None = None
    window_s: float | None = None
    teardown_s: float | None = None
    charged_s: float = 0.0
    deadline_s: float = 0.0
    ended: str = ""
    steady: str = ""
    produced_frac: float | None = None
    blocks: Blocks = field(default_factory=Blocks)
    memory: Memory = field(default_factory=Memory)
    loss_samples: tuple[int, ...] = ()
    loss_values: tuple[float, ...] = ()
    loss_t_s: tuple[float, ...] = ()
    contamination: Contamination | None = None
    counters: Mapping[str, float] = field(default_factory=dict[str, float])
    is_disturbed: bool = False

    @property
    def is_ok(self) -> bool:
        """Return whether it was measured."""
        return self.kind == OK

    def slowed(self, factor: float) -> TableRow:
        """Return the row with all training times scaled; start-up is not."""
        if not self.is_ok or not len(self.blocks):
            return self
        trains_s = (self.warmup_s or 0.0) + (self.window_s or 0.0)
        return replace(
            self,
            warmup_s=None if self.warmup_s is None else factor * self.warmup_s,
            window_s=None if self.window_s is None else factor * self.window_s,
            charged_s=self.charged_s + (factor - 1.0) * trains_s,
            blocks=self.blocks.slowed(factor),
        )

    def throughput(self, unit: str) -> Estimate | None:
        """Return the steady throughput of the window, None without one.

        Args:
            unit: ``samples/s`` or ``steps/s``, from the header.
        """
        if not self.is_ok or not len(self.blocks):
            return None
        found = window_estimate(self.blocks.plain(), unit=unit)
        produced = 1.0 if self.produced_frac is None else self.produced_frac
        return Estimate(
            value=found.value * produced,
            low=found.low * produced,
            high=found.high * produced,
            n=found.n,
            unit=unit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header with its rows.

    Args:
        size_bytes: Size of the complete lines; an incomplete last line follows, which must be cut off before
            appending.
    """

    header: TableHeader
    rows: tuple[TableRow, ...] = ()
    size_bytes: int = 0

    def of(self, config: Config) -> tuple[TableRow, ...]:
        """Rows of one configuration, sentinels and disturbed ones included, in the order of recording."""
        return tuple(row for row in self.rows if row.config == config)

    def settled(self) -> dict[tuple[int, int], TableRow]:
        """Return the valid row of every slot (repeat, order): the last undisturbed one, else the last."""
        found: dict[tuple[int, int], TableRow] = {}
        for row in self.rows:
            slot = (row.repeat, row.order)
            if slot not in found or not row.is_disturbed or found[slot].is_disturbed:
                found[slot] = row
        return found


def encode(line: TableHeader | TableRow) -> bytes:
    """Return one line of a table, newline included."""
    return wire.dumps(line).encode() + b"\n"


def decode(data: bytes, *, source: str = "table") -> Table:
    """Return a table from its bytes, without an incomplete last line.

    Args:
        data: The whole file.
        source: Name in error messages.

    Raises:
        UsageError: It is not a table, or has a newer schema.
        StoreError: A line other than the last is damaged.
    """
    lines = data.split(b"\n")[:-1]
    if not lines:
        raise UsageError(f"{source} holds no whole line", hint="the recorder writes tables")
    header = _header(lines[0], source)
    rows: list[TableRow] = []
    again = f'{{"_":"{TableHeader.__name__}",'.encode()
    for number, line in enumerate(lines[1:], 2):
        if line.startswith(again):
            header = _grown(header, _header(line, source), source, number)
            continue
        try:
            rows.append(wire.loads(TableRow, line.decode()))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{source} is damaged in line {number}: {error}", hint="take it from version control again"
            ) from error
    return Table(header=header, rows=tuple(rows), size_bytes=sum(len(line) + 1 for line in lines))


def _header(line: bytes, source: str) -> TableHeader:
    try:
        data = json.loads(line)
        version = data["schema_version"] if data["_"] == TableHeader.__name__ else None
    except (ValueError, KeyError, TypeError):
        version = None
    if not isinstance(version, int):
        raise UsageError(f"{source} is no recorded grid", hint="its first line is not a table's header")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{source} has schema {version}, this version reads up to {SCHEMA_VERSION}",
            hint="install the autotune that wrote it",
        )
    try:
        return wire.loads(TableHeader, line.decode())
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{source}: its header is damaged: {error}", hint="take it from version control again"
        ) from error


def _grown(before: TableHeader, after: TableHeader, source: str, number: int) -> TableHeader:
    """Return a later header, after a check that earlier rows belong to it."""
    if after.configs[: len(before.configs)] != before.configs or after.table != before.table:
        raise StoreError(
            f"{source} is damaged in line {number}: this header is none of the rows before it",
            hint="take it from version control again",
        )
    return after
