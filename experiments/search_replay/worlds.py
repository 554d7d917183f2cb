"""Recorded tables as a replay needs them: with processes that scatter, and, where wanted, made adverse.

A table of several whole repeats is replayed unchanged. Where a configuration has been run once (all of
them, or all but the fastest and the unchanged script) it holds one process of it: drawn again and again
it would read the same but for the waves inside its window, and every search would know after one run
what is true. And that one run is as lucky as it is fast. So

- what is true is what all runs of the table together say of each configuration (`levels.py`), the
  changes of the machine meanwhile taken out: one whose neighbours are as fast as it read is that fast,
  one that stands alone with a single run is less so;
- the machine of a search changes as that of the table did, as much and as quickly, in a way that the
  seed draws (`Machine`): what is beside each other in time is alike;
- how much processes of one configuration differ beside that is what the table has for noise (`levels.py`,
  by all of its runs); how that is spread, the unchanged script shows, which ran between the others: every run
  of it becomes a repeat of its own, the machine's changes taken out and made as wide as the noise, and every
  other configuration gets as many processes, around its level by the same deviations, each of them once, in
  an order of its own;
- the first process of a configuration that compiles paid a cold compile and the others a warm one, of the
  lengths that were recorded (`compile_times`);
- losses are those of the unchanged script, for everybody: one seed does not show what seeds do to a
  loss, and a guard that reads the difference of one pair as a rule bars what a real search would pass.
  A loss that breaks stays as it was.

Adverse variants change a table so that what is usually known of speed misleads.
"""

import bisect
import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, pstdev, stdev

import levels
import score

from autotune.errors import UsageError, did_you_mean
from autotune.loss.loss_guard import finite_and_sane
from autotune.model.config import Config
from autotune.model.measurement import LossPoint
from autotune.testing.table import Blocks, Table

FORK_STARTS = Path(__file__).resolve().parents[1] / "fork_start" / "results"

FEWEST_OWN = 4
"""Runs of the unchanged script below which its scatter is not known."""

LEAST_DRIFT = 0.005
"""Standard deviation, in ln rate, below which a machine counts as one that does not change."""

MACHINE_STEP_S = 2.0

MEMORY_ROOM = 1.02
MOVED = 2


@dataclass(frozen=True)
class World:
    """What is replayed, what is true in it, and how either came about, for the result files."""

    table: Table
    truth: score.Truth
    notes: dict
    forked_start: float = 1.0
    """Start-up of a forked process over that of a fresh one; 1 where that was never measured."""
    drift: tuple = (0.0, 0.0)
    """Of the machine: standard deviation in ln rate, and minutes over which it is alike."""

    def machine(self, seed):
        """How fast the machine is in a search of this seed, for every sampler alike; None: as ever."""
        sd, minutes = self.drift
        return None if sd < LEAST_DRIFT else Machine(sd, minutes, f"{self.table.header.table}/{seed}/machine")


class Machine:
    """A machine that is faster and slower for a while: second of the clock -> by how much, in ln rate.

    Args:
        sd: Standard deviation of it, in ln rate.
        minutes: After which it resembles itself by 1/e (an Ornstein-Uhlenbeck process).
        key: Of all draws.
    """

    def __init__(self, sd, minutes, key):
        self.sd, self.keeps = sd, math.exp(-MACHINE_STEP_S / (60.0 * minutes))
        self.draw = random.Random(key)
        self.path = [self.draw.gauss(0.0, sd)]

    def __call__(self, at_s):
        at = int(at_s / MACHINE_STEP_S)
        while len(self.path) <= at:
            new = self.draw.gauss(0.0, self.sd * math.sqrt(1.0 - self.keeps**2))
            self.path.append(self.keeps * self.path[-1] + new)
        return self.path[at]


def world(table, variant=""):
    """A table as it is replayed; with scattered processes where a configuration has been run once."""
    recorded, runs = table, [len(rows) for c, rows in rows_of(table).items() if not c.is_baseline]
    scatters = min(runs, default=0) <= 1
    reported, compiles = None, {}
    if scatters:
        reported, compiles = table_levels(table), compile_times(table)
        table = levelled(table, reported, compiles)
    if variant:
        table = adverse(table, variant)
    truth = score.Truth.of(table)
    logs = [log_rate(recorded, row) for row in own_rows(recorded)]
    if scatters:
        # Its processes are made around the levels: they are what is true in it.
        truth = replace(truth, oracle_rate=truth.rates[truth.oracle])
    notes = {
        "repeats": len({row.repeat for row in recorded.rows}),
        "runs": [min(runs, default=0), max(runs, default=0)],
        # A variant's oracle may have the place of another, whose runs say nothing of it.
        "oracle_runs": None if variant else len(recorded.of(truth.oracle)),
        "own_runs": len(logs),
        "own_sd": round(stdev(logs), 5) if len(logs) > 1 else None,
        "within": {str(percent): truth.within(percent) for percent in score.WITHIN},
    }
    if reported is not None:
        notes |= {"level_sd": None if variant else reported.sd.get(truth.oracle), "sizes": reported.sizes}
    share = forked_start(table.header.workload.name)
    made = _known(scattered(table, compiles) if scatters else table)
    drift = (0.0, 0.0) if reported is None else (reported.sizes["drift"], reported.sizes["minutes"])
    return World(made, truth, notes, share, drift)


def flat(world):
    """The same with nothing to gain: what trains faster than the unchanged script trains at its rate.

    By the rate without compiling, which pairs compare: over the run a compile then makes it slower.
    """
    own = fmean(log_rate(world.table, row) for row in own_rows(world.table))
    gains = {
        config: math.exp(max(0.0, fmean(logs) - own))
        for config, rows in rows_of(world.table).items()
        if (logs := [log_rate(world.table, row) for row in rows if _counts(row)])
    }
    rows = tuple(row.slowed(gains.get(row.config, 1.0)) for row in world.table.rows)
    base = world.truth.base
    rates = {c: min(r / gains.get(c, 1.0), base) for c, r in world.truth.rates.items()}
    truth = replace(world.truth, rates=rates, oracle=Config(), oracle_rate=base)
    return replace(world, table=replace(world.table, rows=rows), truth=truth)


def rows_of(table):
    """Config -> its settled runs, in the order of recording."""
    found = {}
    for _, row in sorted(table.settled().items()):
        found.setdefault(row.config, []).append(row)
    return found


def forked_start(workload, files=None):
    """Of the start-up of a fresh process: what a forked one took on this workload, wherever both ran.

    `experiments/fork_start` measured both, in turns; 1 where a process that was to be forked was not.
    """
    rows = [
        json.loads(line)
        for file in (FORK_STARTS.glob("rows-*.jsonl") if files is None else files)
        for line in file.read_text().splitlines()
    ]
    rows = [r for r in rows if r["workload"] == workload and r["kind"] == "ok" and not r["compile"]]
    fresh = [r["startup_s"] for r in rows if r["arm"] != "fork"]
    forked = [r["startup_s"] for r in rows if r["start"] == "fork"]
    if not forked or any(r["start"] != "fork" for r in rows if r["arm"] == "fork"):
        return 1.0
    return round(min(1.0, median(forked) / median(fresh)), 4)


def _known(table):
    """Older tables do not say what their script does before it imports PyTorch; the workloads do nothing."""
    facts = table.header.facts
    if facts.run is None or facts.run.environ_set is not None:
        return table
    run = replace(facts.run, environ_set=(), loaded_first=())
    return replace(table, header=replace(table.header, facts=replace(facts, run=run)))


def own_rows(table):
    """Measured runs of the unchanged script in recorded order; disturbed ones only without others."""
    found = [row for _, row in sorted(table.settled().items()) if row.config.is_baseline and _counts(row)]
    return [row for row in found if not row.is_disturbed] or found


def log_rate(table, row):
    """ln of what one process read, without its compile."""
    return math.log(row.throughput(table.header.workload.unit).value)


def _counts(row):
    return row.is_ok and len(row.blocks) > 0


# Few repeats -----------------------------------------------------------------------------------


def table_levels(table):
    """Levels of what ran, by all runs that nobody disturbed; by disturbed ones where there are no others."""
    return levels.levels(runs_of(table), knobs_of(table))


def knobs_of(table):
    """What the grid varies."""
    return list(table.header.request.knobs)


def runs_of(table):
    """(place, configuration, minutes at which it began, ln rate) of the runs that count for levels."""
    fine = {config: [row for row in rows if _counts(row)] for config, rows in rows_of(table).items()}
    quiet = [row for rows in fine.values() for row in ([r for r in rows if not r.is_disturbed] or rows)]
    return [
        ((row.repeat, row.order), row.config, levels.minutes(row.began), log_rate(table, row))
        for row in quiet
    ]


def compile_times(table):
    """Configuration -> (seconds of its compile with an empty cache, with a filled one), of what compiles.

    What was seen with one kind of cache alone has the other by what a warm compile takes of a cold one, in
    the median of the configurations that have both, else by all of either kind. Where no warm one was ever
    seen, or no cold one, the two are the same.
    """
    seen = {}
    for config, rows in rows_of(table).items():
        for row in rows:
            if _counts(row) and row.compile_s and row.compile_cache in ("cold", "warm"):
                seen.setdefault(config, {}).setdefault(row.compile_cache, []).append(row.compile_s)
    medians = {config: {kind: median(each) for kind, each in of.items()} for config, of in seen.items()}
    both = [of["warm"] / of["cold"] for of in medians.values() if len(of) == 2]
    each = {kind: [of[kind] for of in medians.values() if kind in of] for kind in ("cold", "warm")}
    share = 1.0
    if both:
        share = median(both)
    elif all(each.values()):
        share = median(each["warm"]) / median(each["cold"])
    share = min(1.0, share)
    found = {}
    for config, of in medians.items():
        cold = of.get("cold", of.get("warm", 0.0) / share)
        found[config] = (cold, min(cold, of.get("warm", share * cold)))
    return found


def _compiled(row, seconds, cache):
    """The same process with another compile before its window."""
    longer_s = seconds - (row.compile_s or 0.0)
    return replace(
        row,
        compile_s=seconds,
        compile_cache=cache,
        charged_s=row.charged_s + longer_s,
        loss_t_s=tuple(max(0.0, at + longer_s) for at in row.loss_t_s),
    )


def levelled(table, reported, compiles):
    """A table of one repeat: the script's runs around its level by noise alone, one of others at theirs.

    What compiles did so with an empty cache.
    """
    own = own_rows(table)
    if len(own) < FEWEST_OWN:
        raise UsageError(
            f"{table.header.table} has {len(own)} runs of the script, which do not show their scatter",
            hint=f"record {FEWEST_OWN} at least, or more repeats",
        )
    by_place = dict(zip(reported.places, reported.rest, strict=True))
    rest = [by_place[row.repeat, row.order] for row in own]
    # Levels follow the runs, so what is left of them is a little less than the noise.
    wider = reported.sizes["noise"] * math.sqrt((len(rest) - 1) / len(rest)) / max(pstdev(rest), 1e-9)
    wanted = [reported.of[Config()] + wider * (x - fmean(rest)) for x in rest]
    made = [row.slowed(math.exp(log_rate(table, row) - y)) for row, y in zip(own, wanted, strict=True)]
    for config, rows in rows_of(table).items():
        fine = [row for row in rows if _counts(row)]
        if config.is_baseline:
            continue
        if 2 * len(fine) <= len(rows):
            made.append(next(row for row in rows if not _counts(row)))
            continue
        first = next((row for row in fine if not row.is_disturbed), fine[0])
        if config in compiles:
            first = _compiled(first, compiles[config][0], "cold")
        made.append(first.slowed(math.exp(log_rate(table, first) - reported.of[config])))
    rows = tuple(replace(row, repeat=0, order=order, attempt=1) for order, row in enumerate(made))
    return replace(table, rows=rows)


def scattered(table, compiles):
    """A table of one repeat with as many processes of each configuration as the script has runs.

    Args:
        compiles: What `compile_times` says; all processes of what compiles but the first find its cache.
    """
    header, own = table.header, own_rows(table)
    spread, count, shown = deviations(table, own), len(own), _longest(own)
    rows = [_repeat(_with_loss(row, shown), repeat, 0) for repeat, row in enumerate(own)]
    others = [row for _, row in sorted(table.settled().items()) if not row.config.is_baseline]
    for order, row in enumerate(others, 1):
        drawn = random.Random(f"{header.table}/{row.config.digest}/processes").sample(spread, count)
        first = later = _with_loss(row, shown)
        if row.config in compiles and _counts(row):
            later = _compiled(first, compiles[row.config][1], "warm")
        each = enumerate(drawn)
        rows += [_repeat((later if k else first).slowed(math.exp(-x)), k, order) for k, x in each]
    protocol = replace(header.protocol, seeds=tuple(range(count)), repeats=count)
    return replace(table, header=replace(header, protocol=protocol), rows=tuple(rows))


def deviations(table, own):
    """What runs of the script differ by from their mean, in ln rate, widened to the spread they stand for."""
    logs = [log_rate(table, row) for row in own]
    middle, wider = fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
    return [wider * (x - middle) for x in logs]


def _repeat(row, repeat, order):
    return replace(row, repeat=repeat, order=order, seed=repeat, attempt=1, sentinel=False)


def _longest(own):
    """The longest loss that the script showed, None where it showed none."""
    traces = [row for row in own if row.loss_samples]
    return max(traces, key=lambda row: row.loss_samples[-1]) if traces else None


def _with_loss(row, shown):
    """The script's loss in place of the row's own, as far as that one went.

    A point stands for the samples since the one before, so the last one, which is not on the script's
    own points, has the value of the next: traces that end at different places are the same up to there.
    """
    samples = row.loss_samples
    if shown is None or not samples or len(samples) != len(row.loss_t_s) or _breaks(row):
        return row
    cut = bisect.bisect_left(shown.loss_samples, samples[-1])
    kept = (*shown.loss_samples[:cut], samples[-1])
    values = shown.loss_values
    return replace(
        row,
        loss_samples=kept,
        loss_values=(*values[:cut], values[min(cut, len(values) - 1)]),
        loss_t_s=tuple(_time_at(row, at) for at in kept),
    )


def _breaks(row):
    trace = [
        LossPoint(samples=n, loss=loss, t_s=t_s)
        for n, loss, t_s in zip(row.loss_samples, row.loss_values, row.loss_t_s, strict=True)
    ]
    return finite_and_sane(trace).verdict == "fail"


def _time_at(row, samples):
    """Seconds at which a process had consumed so many samples."""
    at, times = row.loss_samples, row.loss_t_s
    place = bisect.bisect_left(at, samples)
    if place == 0 or place == len(at):
        return times[min(place, len(at) - 1)]
    share = (samples - at[place - 1]) / (at[place] - at[place - 1])
    return times[place - 1] + share * (times[place] - times[place - 1])


# Adverse variants ------------------------------------------------------------------------------


def _inverted(table):
    """What gains costs, and what costs gains, as many times."""
    middle = fmean(log_rate(table, row) for row in own_rows(table))
    rows = [
        row
        if row.config.is_baseline or not _counts(row)
        else row.slowed(math.exp(2.0 * (log_rate(table, row) - middle)))
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def _best_moved(table):
    """The two fastest change places with two of the slower half: no neighbour points to them."""
    rates = score.Truth.of(table).rates
    ranked = sorted((c for c in rates if not c.is_baseline), key=lambda c: (-rates[c], c.canonical()))
    slower = ranked[max(MOVED, len(ranked) // 2) :]
    if len(slower) < MOVED:
        raise UsageError(f"{table.header.table} has too few configurations for their best to be moved")
    chosen = random.Random(f"{table.header.table}/best-moved").sample(slower, MOVED)
    places = dict(zip(ranked, chosen, strict=False))
    places |= {there: here for here, there in places.items()}
    return replace(table, rows=tuple(_placed(row, places.get(row.config, row.config)) for row in table.rows))


def _placed(row, config):
    return row if row.config == config else replace(row, config=config, digest=config.digest, readings=())


def _compile_fails(table):
    """Whatever compiles crashes, after its compile."""
    rows = [
        _failed(row, "crash_exit", "the compiler fails, by design", (row.compile_s or 0.0))
        if _counts(row) and row.config.get("compile_mode", "off") != "off"
        else row
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def _small_memory(table):
    """A machine that half of the configurations do not fit into; the unchanged script does."""
    peaks = sorted(row.memory.peak_bytes or 0 for row in table.rows if _counts(row))
    own = max(row.memory.peak_bytes or 0 for row in own_rows(table))
    limit = int(max(MEMORY_ROOM * own, peaks[len(peaks) // 2]))
    rows = []
    for row in table.rows:
        peak = row.memory.peak_bytes or 0
        if _counts(row) and peak > limit:
            before_s = (row.compile_s or 0.0) + (row.warmup_s or 0.0)
            rows.append(_failed(row, "oom_host", "out of memory, by design", before_s, peak_bytes=peak))
        else:
            rows.append(replace(row, memory=replace(row.memory, limit=limit)))
    return replace(table, rows=tuple(rows))


def _failed(row, kind, message, before_s, **evidence):
    """The row as a failure that many seconds after its start-up."""
    return replace(
        row,
        kind=kind,
        message=message,
        evidence=evidence,
        charged_s=round((row.start_up_s or 0.0) + before_s, 3),
        blocks=Blocks(),
        loss_samples=(),
        loss_values=(),
        loss_t_s=(),
    )


VARIANTS = {
    "inverted": (_inverted, "what gains costs as many times, and the other way round"),
    "best-moved": (_best_moved, "the two fastest change places with two of the slower half"),
    "compile-fails": (_compile_fails, "everything compiled crashes"),
    "small-memory": (_small_memory, "half of the configurations run out of memory"),
}
"""Name -> (what makes it, what it is)."""


def adverse(table, variant):
    """A variant of a table, by name."""
    if variant not in VARIANTS:
        hint = did_you_mean(variant, VARIANTS) or f"one of: {', '.join(VARIANTS)}"
        raise UsageError(f'there is no variant "{variant}"', hint=hint)
    return VARIANTS[variant][0](table)
