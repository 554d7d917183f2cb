"""Loss curves with a known delay: made from nothing, or from recorded ones. Standard library only."""

import functools
import json
import math
from pathlib import Path

from autotune.model.measurement import LossPoint
from autotune.testing import table as tables

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
BATCH, STEPS, THINNED = 32, 80, 4
FEWEST_SEEDS = 6


def points(losses):
    """As a trial reports a long trace: means over four steps."""
    means = [math.fsum(losses[k : k + THINNED]) / THINNED for k in range(0, len(losses), THINNED)]
    return tuple(
        LossPoint(samples=BATCH * THINNED * (k + 1), loss=v, t_s=0.05 * THINNED * (k + 1))
        for k, v in enumerate(means)
    )


class Simulated:
    """A script: its curve and its noise, drawn once; its runs by seed.

    Noise of a batch depends on the seed alone; a change adds a rounding noise of its own. Where `kept` is
    given, a change deals random streams anew: nothing of a batch's noise stays, and of the shift that a seed
    brings the part that makes runs of one seed correlate so much.
    """

    def __init__(self, draw):
        self.tag = draw.random()
        self.power = draw.random() < 0.5
        self.speed = draw.uniform(0.15, 0.6)
        self.seed_sd = draw.choice((0.01, 0.03, 0.06))
        self.batch_sd = draw.choice((0.03, 0.1, 0.2))
        self.rounding = draw.choice((1e-5, 1e-3))

    def level(self, k):
        """The loss after k steps without noise."""
        if self.power:
            return 0.3 + 2.0 * (1.0 + k / (self.speed * 10.0)) ** -0.7
        return 0.3 + 2.0 * math.exp(-k / (self.speed * STEPS))

    def spread(self):
        """How much the mean loss of the last third truly varies from seed to seed."""
        late = range(STEPS - STEPS // 3 + 1, STEPS + 1)
        shift = self.seed_sd * math.fsum(late) / len(late) / STEPS
        batch = self.batch_sd / 2.0 * math.sqrt(math.fsum(self.level(k) ** 2 for k in late)) / len(late)
        return math.hypot(shift, batch)

    def run(self, seed, delay, random, rounding=True, kept=None, worse=0.0):
        """A trace; `random` makes a generator from text. `worse` is added to all of it."""
        shared, own = random(f"{self.tag}/{seed}"), random(f"{self.tag}/{seed}/own/{delay}")
        shift = shared.gauss(0.0, self.seed_sd)
        if kept is not None:
            shift = kept * shift + math.sqrt(1.0 - kept**2) * own.gauss(0.0, self.seed_sd)
            shared = own
        values = []
        for k in range(1, STEPS + 1):
            level = self.level(k * (1.0 - delay)) + worse
            batch = shared.gauss(0.0, self.batch_sd) * self.level(k) / 2.0
            values.append(
                level + shift * k / STEPS + batch + (own.gauss(0.0, self.rounding) if rounding else 0.0)
            )
        return points(values)


class Wandering:
    """A script that begins to learn at a moment of the seed's, and whose runs part under rounding.

    As a small residual network on digits does: the same seed on the same samples gives the same losses for
    some hundred steps; then what rounding has changed grows until it sets the moment off, and is outgrown.
    """

    def __init__(self, draw):
        self.tag = draw.random()
        self.moment = draw.uniform(0.3, 0.5)
        self.seed_sd = draw.choice((0.05, 0.1))
        self.batch_sd = draw.choice((0.03, 0.1))
        self.wander_sd = draw.choice((0.02, 0.05))

    def level(self, k):
        """The loss after k steps without noise."""
        return 0.2 + 2.1 / (1.0 + math.exp(12.0 * (k / STEPS - self.moment)))

    def spread(self, random):
        """How much the mean loss of the last third varies from seed to seed, by two hundred of them."""
        ends = []
        for seed in range(10_000, 10_200):
            trace = self.run(seed, 0.0, random, rounding=False)
            ends.append(math.fsum(p.loss for p in trace[-(len(trace) // 3) :]) / (len(trace) // 3))
        mean = math.fsum(ends) / len(ends)
        return math.sqrt(math.fsum((x - mean) ** 2 for x in ends) / (len(ends) - 1))

    def run(self, seed, delay, random, rounding=True, late=0.0):
        """A trace; `random` makes a generator from text. Rounding makes the clock stray."""
        shared, own = random(f"{self.tag}/{seed}"), random(f"{self.tag}/{seed}/own/{delay}")
        pace, strayed, values = math.exp(shared.gauss(0.0, self.seed_sd)), 0.0, []
        for k in range(1, STEPS + 1):
            if rounding and k % (STEPS // 10) == 1:
                strayed = 0.5 * strayed + own.gauss(0.0, self.wander_sd)
            level = self.level(k * pace * (1.0 - delay) * math.exp(strayed))
            harm = late if k > STEPS * 2 / 3 else 0.0
            values.append(level + harm + shared.gauss(0.0, self.batch_sd) * self.level(k) / 2.0)
        return points(values)


class Recorded:
    """A script whose runs at several seeds were recorded; a delay is planted into its mean curve."""

    def __init__(self, name, traces):
        self.name, self.traces = name, traces
        length = min(len(t) for t in traces.values())
        mean = [math.fsum(t[k].loss for t in traces.values()) / len(traces) for k in range(length)]
        wide = max(1, length // 12)
        self.curve = [
            math.fsum(mean[max(0, k - wide) : k + wide + 1]) / len(mean[max(0, k - wide) : k + wide + 1])
            for k in range(length)
        ]

    def level(self, k):
        """The smoothed mean curve at a step that need not be whole."""
        at = min(max(k, 0.0), len(self.curve) - 1.0)
        low = int(at)
        high = min(low + 1, len(self.curve) - 1)
        return self.curve[low] + (at - low) * (self.curve[high] - self.curve[low])

    def run(self, seed, delay, random, rounding=True):
        """The recorded trace of that seed, so much behind; with a rounding noise as bf16 has it."""
        own = random(f"{self.name}/{seed}/{delay}")
        learned = max(self.curve) - min(self.curve)
        found = []
        for k, p in enumerate(self.traces[seed][: len(self.curve)]):
            behind = self.level(k * (1.0 - delay)) - self.level(k)
            noise = own.gauss(0.0, 1e-4 * learned) if rounding else 0.0
            found.append(LossPoint(samples=p.samples, loss=p.loss + behind + noise, t_s=p.t_s))
        return tuple(found)


@functools.cache
def recorded():
    """Scripts with enough recorded seeds."""
    by_script = {}
    for path in sorted((EXPERIMENTS / "claims" / "results" / "noise").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[1:]:
            trace = zip(line["loss_samples"], line["loss"], strict=True)
            _add(by_script, lines[0]["workload"], line["seed"], trace)
    for path in sorted((EXPERIMENTS / "grids").glob("*/*.jsonl")):
        table = tables.decode(path.read_bytes(), source=path.name)
        for row in table.rows:
            if not row.config and row.is_ok:
                trace = zip(row.loss_samples, row.loss_values, strict=True)
                _add(by_script, table.header.workload.name, row.seed, trace)
    scripts = [Recorded(name, traces) for name, traces in by_script.items() if len(traces) >= FEWEST_SEEDS]
    return [s for s in scripts if s.curve[0] > s.curve[-1]]


def _add(by_script, name, seed, trace):
    found = tuple(LossPoint(samples=n, loss=v, t_s=0.05 * (k + 1)) for k, (n, v) in enumerate(trace))
    known = by_script.setdefault(name, {})
    if len(found) >= 12 and len(found) > len(known.get(seed, ())):
        known[seed] = found
