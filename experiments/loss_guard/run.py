"""Which harms does the loss guard see, and which harmless changes does it let pass?

    python run.py --limit 20m --jobs 2     # as often as it takes; goes on where it stopped
    python run.py --list                   # what is done and what it says; runs nothing

Traces go through `core.loss_guard.judge` with as many seeds as a confirmation has.
"""

import json
import random
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "claims")]

import guard_traces  # noqa: E402 - neighbours of this file
import proofs  # noqa: E402

from autotune.core.loss_guard import judge  # noqa: E402

CYCLES = (3, 5, 8)
"""Confirmation cycles: the fewest, the usual number, many."""
DELAYS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
SIMULATED, PART = 400, 50
GROUPS = 20
"""Verdicts per change and training, each on seeds of its own."""
ACCEPTED_LEAST = 0.95


def seeds(cycles):
    """(of the baseline, of the candidate): two first runs, one screening run, one pair per cycle."""
    later = range(2, 2 + cycles)
    return (0, 1, *later), (0, *later)


def units():
    """(case, part); case is ``source/change``."""
    from guard_trainings import BENIGN, HARMS, WORKLOADS, applies

    found = []
    for source in ("simulated", "recorded"):
        if source == "simulated" or guard_traces.recorded():
            found += [(f"{source}/delay_{100 * d:g}", p) for d in DELAYS for p in range(SIMULATED // PART)]
    for group in range(GROUPS):
        for workload in WORKLOADS:
            changes = [c for c in (*BENIGN, *HARMS) if applies(workload, c)]
            found += [(f"{workload}/{change}", group) for change in changes]
    return found


def work(case, part):
    """Verdicts of one part, summed by number of cycles."""
    source, change = case.split("/")
    sums = {}
    if source in ("simulated", "recorded"):
        delay = float(change.removeprefix("delay_")) / 100
        for k in range(PART):
            draw = random.Random(f"{case}/{part}/{k}")
            script = (
                guard_traces.Simulated(draw)
                if source == "simulated"
                else draw.choice(guard_traces.recorded())
            )
            _planted(sums, script, delay, draw)
    else:
        _trained(sums, source, change, 100 * part)
    return sums


def _planted(sums, script, delay, draw):
    for cycles in CYCLES:
        base_seeds, own_seeds = seeds(cycles)
        if isinstance(script, guard_traces.Recorded):
            if len(script.traces) < len(base_seeds):
                continue
            chosen = draw.sample(sorted(script.traces), len(base_seeds))
            named = dict(zip(base_seeds, chosen, strict=True))
        else:
            named = {s: s for s in base_seeds}
        base = {s: script.run(named[s], 0.0, random.Random, rounding=False) for s in base_seeds}
        own = {s: script.run(named[s], delay, random.Random) for s in own_seeds}
        _count(sums, cycles, judge(own, base, redeals=False, effective_batch=guard_traces.BATCH))


def _trained(sums, workload, change, first):
    from guard_trainings import REDEALS, losses

    for cycles in CYCLES[:2]:
        base_seeds, own_seeds = seeds(cycles)
        base = {s: guard_traces.points(losses(workload, "none", first + s)) for s in base_seeds}
        own = {s: guard_traces.points(losses(workload, change, first + s)) for s in own_seeds}
        redeals = change in REDEALS
        _count(sums, cycles, judge(own, base, redeals=redeals, effective_batch=guard_traces.BATCH))
    late = guard_traces.STEPS // 3
    ends = [statistics.fmean(p.loss for p in t[-late:]) for t in base.values()]
    mine = [statistics.fmean(p.loss for p in t[-late:]) for t in own.values()]
    sums["n"] = 1
    # How bad it is, in spreads between seeds: a reader can tell a harm from a trifle.
    sums["worse_sds"] = (statistics.fmean(mine) - statistics.fmean(ends)) / (statistics.stdev(ends) or 1.0)


def _count(sums, cycles, verdict):
    for key in ("pass", "unclear", "fail"):
        name = f"{key}_{cycles}"
        sums[name] = sums.get(name, 0) + (verdict.verdict == key)


def table(totals):
    """Rows for people and for README.md: how often a change is barred (not passed)."""
    lines = [
        "| change | verdicts | "
        + " | ".join(f"barred, {c} cycles" for c in CYCLES)
        + " | of them refused | worse by |"
    ]
    lines.append("|---|---|" + "---|" * (len(CYCLES) + 2))
    for case, s in totals.items():
        cells, refused, n = [], "", 0
        for cycles in CYCLES:
            told = [s.get(f"{key}_{cycles}", 0) for key in ("pass", "unclear", "fail")]
            if sum(told):
                n = max(n, sum(told))
                cells.append(f"{1.0 - told[0] / sum(told):.0%}")
                refused = f"{told[2] / sum(told):.0%}"
            else:
                cells.append("-")
        worse = f"{s['worse_sds'] / s['n']:+.1f} seed sd" if s.get("n") else "-"
        lines.append(f"| {case} | {n} | {' | '.join(cells)} | {refused} | {worse} |")
    return lines


def failing(totals):
    """Sentences on benign changes that are refused too often."""
    from guard_trainings import BENIGN

    out = []
    for case, s in totals.items():
        change = case.split("/")[1]
        told = [s.get(f"{key}_5", 0) for key in ("pass", "unclear", "fail")]
        if (change in BENIGN or change == "delay_0") and sum(told) and told[0] / sum(told) < ACCEPTED_LEAST:
            out.append(f"{case} is accepted in {told[0]} of {sum(told)} only")
    return out


def identity():
    """Of the sources that decide."""
    core = proofs.PACKAGE / "core"
    own = [HERE / "guard_traces.py", HERE / "guard_trainings.py"]
    return {"sources": proofs.sources_sha256(core / "loss_guard.py", core / "stats.py", *own)}


def main(words=None):
    chosen = proofs.options(__doc__).parse_args(words)
    path = chosen.out or HERE / "results" / "loss_guard.jsonl"
    ledger = proofs.Ledger(path, identity(), new=chosen.new, reads=chosen.list)
    wanted = [u for u in units() if chosen.only in u[0]]
    done = True
    if not chosen.list:
        done = proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit)
    totals = ledger.totals()
    print("\n".join(table(totals)))
    for sentence in failing(totals):
        print(f"DOES NOT HOLD: {sentence}")
    path.with_suffix(".json").write_text(json.dumps(totals, indent=1) + "\n")
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
