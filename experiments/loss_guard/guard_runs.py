"""Small trainings, with and without a change, as files: the guard can judge them again at no cost.

    python guard_runs.py --limit 20m     # as often as it takes; goes on where it stopped

A group of seeds is a confirmation of its own: three cycles, then one more as long as the guard cannot
report, as a search goes on. One line per change, workload and group: the loss of each run, as means over
four steps, which is how a trial thins a long trace as well.
"""

import itertools
import json
import math
import statistics
import sys
from pathlib import Path

from autotune.loss.loss_guard import judge
from autotune.model.measurement import LossPoint

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "claims")]

import proofs  # noqa: E402 (needs the path set above)

PATH = HERE / "results" / "trainings.jsonl"
ASKED = ("bf16", "channels_last", "fused", "workers")
GROUPS, FEWER_GROUPS = 20, 5
"""Groups of seeds per change and workload: of what is named in `ASKED`, of all else."""
THINNED = 4
FEWEST, MOST, MOST_HARM = 3, 12, 6
"""Cycles of a confirmation; the finalist that leads goes on to twelve, others to six."""
ORDERED = "mlp"
"""The one workload in which another order of samples is tried: it takes most cycles."""


def seeds(cycles):
    """(of the baseline, of the candidate): two first runs, one screening run, one pair per cycle."""
    later = range(2, 2 + cycles)
    return (0, 1, *later), (0, *later)


def units():
    """(case, group of seeds); what is requested comes first, the quickest workload before others."""
    from guard_trainings import BENIGN, HARMS, WORKLOADS, applies

    found = []
    rest = [change for change in (*BENIGN, *HARMS) if change not in ASKED]
    for changes, groups in ((ASKED, GROUPS), (rest, FEWER_GROUPS)):
        for workload, group in itertools.product(WORKLOADS, range(groups)):
            found += [
                (f"{workload}/{change}", group)
                for change in changes
                if applies(workload, change) and (change != "order" or workload == ORDERED)
            ]
    return found


def work(case, group):
    """The losses of one change and of the plain training at the seeds of one group.

    What is no number is null and ends the run.
    """
    workload, change = case.split("/")
    for cycles in range(FEWEST, most_cycles(change) + 1):
        base_seeds, own_seeds = seeds(cycles)
        base = {s: _losses(workload, "none", group, s) for s in base_seeds}
        own = {s: _losses(workload, change, group, s) for s in own_seeds}
        if verdict(change, traces(base), traces(own)).verdict != "unclear":
            break
    return {"base": base, "own": own}


def most_cycles(change):
    """Cycles after which a confirmation of this change is over, whatever the guard says."""
    from guard_trainings import HARMS

    return MOST_HARM if change in HARMS else MOST


def is_unfinished(change, base, own):
    """Whether the guard would ask for another cycle than those that were run.

    How many were run was the guard's word as it was then.
    """
    return len(base) - 2 < most_cycles(change) and verdict(change, base, own).verdict == "unclear"


def verdict(change, base, own):
    """The guard's on the traces of one group."""
    from guard_traces import BATCH
    from guard_trainings import REDEALS

    return judge(own, base, changes_rng_streams=change in REDEALS, effective_batch=BATCH)


def _losses(workload, change, group, seed):
    from guard_trainings import losses

    return _thinned(losses(workload, change, 100 * group + seed))


def _thinned(values):
    means = [statistics.fmean(values[k : k + THINNED]) for k in range(0, len(values), THINNED)]
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in means]


def traces(runs):
    """Losses by seed, as a trial reports them."""
    from guard_traces import BATCH

    return {
        int(seed): tuple(
            LossPoint(
                samples=BATCH * THINNED * (k + 1),
                loss=math.nan if v is None else v,
                t_s=0.05 * THINNED * (k + 1),
            )
            for k, v in enumerate(values)
        )
        for seed, values in runs.items()
    }


def read(path=PATH):
    """(workload, change, group) -> traces by seed of the plain training, of the changed one."""
    found = {}
    for line in path.read_text().splitlines()[1:] if path.exists() else ():
        row = json.loads(line)
        workload, change = row["case"].split("/")
        found[workload, change, row["part"]] = traces(row["base"]), traces(row["own"])
    return found


def identity():
    """Of the source that decides."""
    return {"sources": proofs.sources_sha256(HERE / "guard_trainings.py"), "steps_per_point": THINNED}


def main(words=None):
    chosen = proofs.options(__doc__).parse_args(words)
    ledger = proofs.Ledger(chosen.out or PATH, identity(), new=chosen.new, reads=chosen.list)
    wanted = [u for u in units() if chosen.only in u[0]]
    if not chosen.list:
        for (workload, change, group), (base, own) in read(ledger.path).items():
            if is_unfinished(change, base, own):
                # The later of two lines of one group counts.
                ledger.lines.pop((f"{workload}/{change}", group), None)
    if not chosen.list and not proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit):
        print("not all is done; run it again to go on")
    ledger.close()
    print(f"{len(ledger.lines)} of {len(units())} groups of runs are there")


if __name__ == "__main__":
    main()
