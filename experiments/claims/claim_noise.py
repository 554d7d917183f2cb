"""Noise of real processes: what fresh runs of one unchanged script differ by, in the order they were run.

A simulated run is made of two recorded parts: the slow course of a series (its moving mean, walked along from
a random place in a random direction), so that machines drift as they did, and a deviation of one run from it,
drawn anew each time.
"""

import functools
import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.model.machine_load import QUIET_CORES
from autotune.testing import table as tables

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
KEPT = HERE / "results" / "series.json"
"""The series that the figures beside it were drawn from; what is recorded later changes nothing of them."""
FEWEST = 6
TEN_STEPS = 10
WIDTH = 5
"""Runs of a moving mean."""
JITTER = 0.25
"""Of a series' spread is added to every drawn value: few values are drawn many times over."""
RESTLESS = 0.05
"""Runs next to each other that differ from the moving mean by more than this have a restless machine."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """One run: its rate, what others used of the machine meanwhile, and its first steps.

    `start` is ln(rate of the first ten steps of its window / rate of the window); None where no blocks
    were kept.
    """

    rate: float
    foreign: float = 0.0
    start: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Runs of one unchanged script on one machine, in order."""

    name: str
    processes: tuple

    @property
    def logs(self):
        """ln rate around its mean."""
        values = [math.log(p.rate) for p in self.processes]
        middle = statistics.fmean(values)
        return [v - middle for v in values]

    @functools.cached_property
    def parts(self):
        """(slow, fast): the moving mean, and what each run deviates from it.

        A mean that contains a value takes a part of its deviation along; that is given back.
        """
        logs, slow, fast = self.logs, [], []
        for k, value in enumerate(logs):
            near = logs[max(0, k - WIDTH // 2) : k + WIDTH // 2 + 1]
            slow.append(statistics.fmean(near))
            fast.append((value - slow[-1]) * math.sqrt(len(near) / (len(near) - 1)))
        return slow, fast

    @property
    def spread(self):
        """Root mean square of what runs deviate from their moving mean."""
        fast = self.parts[1]
        return math.sqrt(math.fsum(v * v for v in fast) / len(fast))

    @property
    def is_restless(self):
        """Others worked beside at least a quarter of the runs, or neighbouring runs differ much."""
        beside = sum(p.foreign > QUIET_CORES for p in self.processes)
        return 4 * beside >= len(self.processes) or self.spread > RESTLESS


def start_of(num_samples, num_steps, seconds):
    """ln(rate over the first blocks that hold ten steps / rate over all)."""
    steps = samples = 0
    spent = 0.0
    for n, k, s in zip(num_samples, num_steps, seconds, strict=True):
        samples, steps, spent = samples + n, steps + k, spent + s
        if steps >= TEN_STEPS:
            break
    whole = sum(num_samples) / sum(seconds)
    return math.log(samples / spent / whole) if samples and spent > 0 and whole > 0 else None


def _from_grid(path):
    """Sentinels and repeats of the unchanged script; a file's sitting is a series of its own."""
    table = tables.decode(path.read_bytes(), source=path.name)
    unit = table.header.workload.unit
    sittings = {}
    for row in table.rows:
        found = row.throughput(unit) if not row.config else None
        if found is None or found.value <= 0:
            continue
        blocks = row.blocks
        counted = blocks.num_samples if unit == "samples/s" else blocks.num_steps
        spent = [e - a for e, a in zip(blocks.elapsed_s, blocks.aside_s, strict=True)]
        foreign = row.contamination.foreign_cpu_frac if row.contamination else 0.0
        sittings.setdefault(row.session, []).append(
            Process(
                rate=found.value,
                foreign=foreign or 0.0,
                start=start_of(counted, blocks.num_steps, spent),
            )
        )
    for session, processes in sittings.items():
        yield Series(name=f"grid {table.header.workload.name} {session}", processes=tuple(processes))


def _from_pairs(path):
    """The unchanged arms of a timed search."""
    data = json.loads(path.read_text())
    same = [r for r in data.get("runs", ()) if r.get("arm") in ("A", "A2") and r.get("samples_per_s")]
    yield Series(name=f"pairs {path.stem}", processes=tuple(Process(rate=r["samples_per_s"]) for r in same))


def _from_own(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    name = lines[0]["workload"]
    processes = tuple(
        Process(
            rate=line["rate"],
            foreign=line["foreign"] or 0.0,
            start=start_of(line["samples"], line["steps"], line["seconds"]),
        )
        for line in lines[1:]
    )
    yield Series(name=f"recorded {name} {path.stem}", processes=processes)


def recorded():
    """The series that were kept; where none are, those that are there now."""
    if not KEPT.exists():
        return gathered()
    return [
        Series(name=one["name"], processes=tuple(Process(**run) for run in one["processes"]))
        for one in json.loads(KEPT.read_text())
    ]


def keep(series, path=KEPT):
    """Have figures drawn from these from now on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    reported = [{"name": s.name, "processes": [asdict(p) for p in s.processes]} for s in series]
    # A line each, so that a change of the file can be read.
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in reported) + "\n]\n")


def gathered():
    """Every series that is long enough, by what is in the folder tree now."""
    found = []
    for path in sorted((EXPERIMENTS / "grids").glob("*/*.jsonl")):
        found += _from_grid(path)
    for path in sorted((EXPERIMENTS / "e2e_speedup" / "results").glob("*.json")):
        found += _from_pairs(path)
    for path in sorted((HERE / "results" / "noise").glob("*.jsonl")):
        found += _from_own(path)
    return [series for series in found if len(series.processes) >= FEWEST]


class Draw:
    """A machine's course, made from one recorded series.

    Args:
        series: The runs.
        random: Where chance comes from.
        scale: Factor on what runs differ by.
        drift: ln rate that is lost with every run.
        starts: ln ratios of first steps to draw from where the series has none.
    """

    def __init__(self, series, random, *, scale=1.0, drift=0.0, starts=()):
        self._series, self._random = series, random
        self._scale, self._drift = scale, drift
        self._slow, self._fast = series.parts
        self._shake = JITTER * series.spread
        own = [p.start for p in series.processes if p.start is not None]
        self._starts = own or list(starts)
        self._at, self._step = random.randrange(len(self._slow)), random.choice((1, -1))
        self._lost = 0.0

    def run(self):
        """(ln rate, foreign cores) of the next run."""
        if not 0 <= self._at + self._step < len(self._slow):
            self._step = -self._step
        self._at += self._step
        one = self._random.randrange(len(self._fast))
        value = self._slow[self._at] + self._fast[one] + self._random.gauss(0.0, self._shake)
        self._lost += self._drift
        return self._scale * value - self._lost, self._series.processes[one].foreign

    def start(self, random):
        """ln(rate of a run's first ten steps / rate of the run).

        By a chance of its own, so that the course of the machine is the same for who asks and who does not.
        """
        return self._scale * random.choice(self._starts) if self._starts else 0.0
