"""Which harms does the loss guard see, and which harmless changes does it let pass?

    python run.py --limit 20m --jobs 2     # as often as it takes; goes on where it stopped
    python run.py --list                   # what is done and what it says; runs nothing

Traces go through `loss.loss_guard.judge` with as many seeds as a confirmation has. Traces of small
trainings are those of `guard_runs.py`, those of the workloads what the recorder of grids has written;
both are run beforehand.
"""

import json
import math
import random
import statistics
import sys
from pathlib import Path

import guard_runs
import guard_traces
from guard_runs import FEWEST, MOST, seeds

from autotune.compare.extension import MOST_CYCLES
from autotune.loss.loss_guard import judge
from autotune.model.config import Config
from autotune.model.measurement import LossPoint
from autotune.testing import table as tables

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "claims")]

import proofs  # noqa: E402 (needs the path set above)

FIXED = (3, 5, 8)
"""Cycles after which one verdict is requested: the fewest, the usual number, many."""
DELAYS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
MARGINS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Planted harms in true margins: half of the true spread between seeds, or all of it."""
KEPT = (0.0, 0.5, 0.9)
"""How much runs of one seed have in common after their random streams were dealt anew."""
WANDERING = {"wandering": MOST, "wandering_long": MOST_CYCLES}
"""Cycles at the most: the usual ones, and as many as a search makes that has the time."""
SIMULATED, PART = 400, 50
WORKLOADS = HERE / "results" / "workloads"
"""Tables of runs of the workloads, see `on_workloads`."""
ACCEPTED_LEAST = 0.95


def units():
    """(case, part); case is ``source/change``."""
    found = [f"simulated/delay_{100 * d:g}" for d in DELAYS]
    found += [f"risk_paired/{m:g}" for m in MARGINS]
    found += [f"risk_redealt_{k:g}/{m:g}" for k in KEPT for m in MARGINS]
    found += [f"{source}/delay_{100 * d:g}" for source in WANDERING for d in DELAYS]
    found += [f"late/{m:g}" for m in MARGINS if m]
    if guard_traces.recorded():
        found += [f"recorded/delay_{100 * d:g}" for d in DELAYS]
    # A little of every case first.
    return [(case, p) for p in range(SIMULATED // PART) for case in found]


def work(case, part):
    """Verdicts of one part, summed by number of cycles."""
    source, change = case.split("/")
    sums = {}
    for k in range(PART):
        draw = random.Random(f"{case}/{part}/{k}")
        if source == "recorded":
            script = draw.choice(guard_traces.recorded())
            _requested(sums, *_recorded(script, float(change.removeprefix("delay_")) / 100, draw))
            continue
        if source in WANDERING:
            longest = WANDERING[source]
            base, own = _wandering(float(change.removeprefix("delay_")) / 100, draw, longest)
            _requested(sums, base, own, longest=longest)
            continue
        if source == "late":
            _requested(sums, *_late(float(change), draw))
            continue
        script = guard_traces.Simulated(draw)
        delay, kept, worse = 0.0, None, 0.0
        if source == "simulated":
            delay = float(change.removeprefix("delay_")) / 100
        else:
            kept = float(source.removeprefix("risk_redealt_")) if source != "risk_paired" else None
            worse = float(change) * script.spread() * (0.5 if kept is None else 1.0)
        base_seeds, own_seeds = seeds(MOST)
        base = {s: script.run(s, 0.0, random.Random, rounding=False) for s in base_seeds}
        own = {s: script.run(s, delay, random.Random, kept=kept, worse=worse) for s in own_seeds}
        _requested(sums, base, own, changes_rng_streams=kept is not None)
    return sums


def _wandering(delay, draw, cycles):
    """Traces of a script whose runs part under rounding."""
    script = guard_traces.Wandering(draw)
    base_seeds, own_seeds = seeds(cycles)
    base = {s: script.run(s, 0.0, random.Random, rounding=False) for s in base_seeds}
    return base, {s: script.run(s, delay, random.Random) for s in own_seeds}


def _late(margins, draw):
    """The same, with a harm that comes with the last third alone, in true margins of that."""
    script = guard_traces.Wandering(draw)
    worse = margins * 0.5 * script.spread(random.Random)
    base_seeds, own_seeds = seeds(MOST)
    base = {s: script.run(s, 0.0, random.Random, rounding=False) for s in base_seeds}
    return base, {s: script.run(s, 0.0, random.Random, late=worse) for s in own_seeds}


def _recorded(script, delay, draw):
    """As many runs as were recorded, in an order of their own."""
    order = draw.sample(sorted(script.traces), len(script.traces))
    named = dict(zip(range(len(order)), order, strict=True))
    base = {s: script.run(k, 0.0, random.Random, rounding=False) for s, k in named.items()}
    own = {s: script.run(k, delay, random.Random) for s, k in named.items() if s != 1}
    return base, own


def _requested(
    sums, base, own, *, changes_rng_streams=False, planned=FEWEST, longest=MOST, batch=guard_traces.BATCH
):
    """Add the verdicts after fixed numbers of cycles, and the one a confirmation ends with.

    A confirmation has `longest` cycles at the most. Runs that are over before the guard could decide, and
    before so many cycles as were planned, end with no verdict.
    """

    def after(cycles):
        base_seeds, own_seeds = seeds(cycles)
        return judge(
            {s: own[s] for s in own_seeds},
            {s: base[s] for s in base_seeds},
            changes_rng_streams=changes_rng_streams,
            effective_batch=batch,
            most_runs=len(own_seeds) + most - cycles,
        )

    most = min(longest, len(base) - 2)
    found, spent, given_up = "", 0, False
    for cycles in range(FEWEST, most + 1):
        if cycles not in FIXED and found in ("pass", "fail"):
            continue
        judged = after(cycles)
        verdict = judged.verdict
        if cycles in FIXED:
            _count(sums, str(cycles), verdict)
        if found not in ("pass", "fail"):
            found, spent = verdict, cycles
            given_up = given_up or (verdict == "unclear" and not judged.can_clear)
    if found == "unclear" and most < planned:
        sums["unfinished"] = sums.get("unfinished", 0) + 1
    elif found:
        sums["cycles"] = sums.get("cycles", 0) + spent
        _count(sums, "end", found)
        # A search turns to another config where more runs would hardly clear this one.
        sums["kept_pass"] = sums.get("kept_pass", 0) + (found == "pass" and not given_up)


def _count(sums, when, verdict):
    for key in ("pass", "unclear", "fail"):
        name = f"{key}_{when}"
        sums[name] = sums.get(name, 0) + (verdict == key)


def trained():
    """Case -> sums, of the trainings that have been run."""
    from guard_trainings import REDEALS

    totals = {}
    for (workload, change, _), (base, own) in sorted(guard_runs.read().items()):
        sums = totals.setdefault(f"{workload}/{change}", {})
        _requested(
            sums, base, own, changes_rng_streams=change in REDEALS, planned=guard_runs.most_cycles(change)
        )
        ends, mine = (
            {s: statistics.fmean(p.loss for p in t[-8:]) for s, t in side.items()} for side in (base, own)
        )
        worse = (statistics.fmean(mine.values()) - statistics.fmean(ends.values())) / statistics.stdev(
            ends.values()
        )
        sums["n"] = sums.get("n", 0) + 1
        # How bad it is, in spreads between seeds: a reader can distinguish a harm from a trifle.
        sums["worse_sds"] = sums.get("worse_sds", 0.0) + (worse if math.isfinite(worse) else 0.0)
    return totals


def on_workloads(folder=WORKLOADS):
    """Case -> sums, of the workloads' own runs: what `../grids/record.py` has recorded of single changes.

    Every seed once begins a confirmation, and the later ones follow in a ring; so the verdicts on a change
    share runs, each as first, as screened or as half of a pair.
    """
    totals = {}
    for path in sorted(folder.glob("*.jsonl")):
        table = tables.decode(path.read_bytes(), source=path.name)
        redealt = {d.knob for d in table.header.space if d.changes_rng_streams}
        runs = {}
        for row in table.rows:
            if row.is_ok:
                runs.setdefault(row.config, {}).setdefault(row.seed, row)
        base = runs.pop(Config(), {})
        for config, own in runs.items():
            sums = totals.setdefault(f"{table.header.workload.name}/{_change(config)}", {})
            shared = sorted(set(base) & set(own))
            for first in range(len(shared)):
                ring = dict(enumerate(shared[first:] + shared[:first]))
                _requested(
                    sums,
                    {k: _loss(base[seed]) for k, seed in ring.items()},
                    {k: _loss(own[seed]) for k, seed in ring.items()},
                    changes_rng_streams=bool(redealt & set(config)),
                    planned=MOST,
                    batch=base[shared[0]].effective_batch or 0.0,
                )
    return totals


def _change(config):
    """The name that the small trainings have for it."""
    words = {"precision": "bf16", "fused_optimizer": "fused", "num_workers": "workers"}
    return " and ".join(words.get(knob, knob) for knob in config)


def _loss(row):
    """The trace of a recorded run, as a trial reports it."""
    points = zip(row.loss_samples, row.loss_values, row.loss_t_s, strict=True)
    return tuple(LossPoint(samples=n, loss=loss, t_s=t_s) for n, loss, t_s in points)


def table(totals):
    """Rows for people and for README.md: how often a change is accepted."""
    when = [*(str(c) for c in FIXED), "end"]
    heads = [*(f"accepted after {c} cycles" for c in FIXED), "as many as it takes", "unless given up"]
    lines = [
        f"| change | verdicts | {' | '.join(heads)} | refused then | cycles | worse by |",
        "|---|---|" + "---|" * (len(heads) + 3),
    ]
    for case, s in totals.items():
        cells, n = [], sum(s.get(f"{key}_end", 0) for key in ("pass", "unclear", "fail"))
        for c in when:
            reported = [s.get(f"{key}_{c}", 0) for key in ("pass", "unclear", "fail")]
            whole = n if c == "end" else n + s.get("unfinished", 0)
            cells.append(f"{reported[0] / sum(reported):.1%}" if whole and sum(reported) == whole else "-")
        cells.append(f"{s['kept_pass'] / n:.1%}" if n and "kept_pass" in s else "-")
        worse = f"{s['worse_sds'] / s['n']:+.1f} seed sd" if s.get("n") else "-"
        cells += [f"{s['fail_end'] / n:.1%}" if n else "-", f"{s['cycles'] / n:.1f}" if n else "-", worse]
        lines.append(f"| {case} | {n} | {' | '.join(cells)} |")
    return lines


def unfinished(totals):
    """Sentences on trainings that stopped where the guard of that time could decide, and this one cannot."""
    return [
        f"{case}: {s['unfinished']} more groups of runs are too short for this guard; guard_runs.py goes on"
        for case, s in totals.items()
        if s.get("unfinished")
    ]


def failing(totals):
    """Sentences on benign changes that are accepted too seldom."""
    from guard_trainings import BENIGN

    out = []
    for case, s in totals.items():
        change = case.split("/")[1]
        reported = [s.get(f"{key}_end", 0) for key in ("pass", "unclear", "fail")]
        if (
            (change in BENIGN or change == "delay_0")
            and sum(reported)
            and reported[0] / sum(reported) < ACCEPTED_LEAST
        ):
            out.append(f"{case} is accepted in {reported[0]} of {sum(reported)} only")
    return out


def identity():
    """Of the sources that decide."""
    parts = proofs.PACKAGE / "loss", proofs.PACKAGE / "statistics", HERE / "guard_traces.py"
    return {"sources": proofs.sources_sha256(*parts)}


def main(words=None):
    chosen = proofs.options(__doc__).parse_args(words)
    path = chosen.out or HERE / "results" / "loss_guard.jsonl"
    ledger = proofs.Ledger(path, identity(), new=chosen.new, reads=chosen.list)
    wanted = [u for u in units() if chosen.only in u[0]]
    done = True
    if not chosen.list:
        done = proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit)
    totals = {**ledger.totals(), **trained(), **on_workloads()}
    print("\n".join(table(totals)))
    for sentence in unfinished(totals):
        print(sentence)
    for sentence in failing(totals):
        print(f"DOES NOT HOLD: {sentence}")
    if not chosen.list:
        path.with_suffix(".json").write_text(json.dumps(totals, indent=1) + "\n")
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
