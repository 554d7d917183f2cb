"""How often does the shipped comparison tell a script from itself, on this machine as it is now?

    python run.py --limit 20m     # workloads take turns; again and again until all pairs are there
    python run.py --neighbour busy --limit 20m   # the same beside a process that computes all the time
    python run.py --list          # what is done and what it says; runs nothing

Fresh processes of unchanged scripts in pairs, by the runner of a search; then the confirmation that ships
(`compare/comparison.py`, `search/confirmation/verification.py`) judges them as if one of each pair were a
finalist.
Neighbours are those of `../claims/neighbours.py`; what was measured beside one lies in a file of its own.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(HERE.parent / "claims"))

import claim_studies  # noqa: E402 (needs the path set above)
import neighbours  # noqa: E402 (needs the path set above)
import proofs  # noqa: E402
import recording  # noqa: E402

from autotune.model.study import Study  # noqa: E402
from autotune.model.trial import Fidelity, Stage, Trial, TrialState  # noqa: E402
from autotune.search.confirmation.verification import Verification  # noqa: E402

NAMES = ("vision_digits", "tabular_mlp", "photos_denoise")
PAIRS_PER_CLAIM = 5
PAIRS = 35
"""Of each workload: 21 comparisons that share no pair, where 20 are requested."""
VERDICTS = ("faster", "slower", "no_difference")
_FIDELITY = Fidelity(
    min_window_s=1.5, max_window_s=4.0, min_steps=10, target_width=0.02, setup_s=60.0, deadline_s=120.0
)


def judged(pairs):
    """What the comparison that ships says of these pairs: (verdict, (low, high) of the ratio or None).

    In every second pair the first run stands for the candidate, as the order of a confirmation turns.
    """
    trials = []

    def add(stage, config, run, seed, group=0):
        trials.append(
            Trial(
                number=len(trials),
                config=config,
                stage=stage,
                fidelity=_FIDELITY,
                seed=seed,
                group=group,
                state=TrialState.FINISHED,
                outcome=claim_studies.measured(run["rate"], run["foreign"] or 0.0, seed),
                seconds=claim_studies.TRIAL_S,
            )
        )

    # The script's first two runs calibrate the loss guard and are in no pair.
    for seed in (0, 1):
        add(Stage.BASELINE, claim_studies.BASE, pairs[0][0], seed)
    for group, (first, second) in enumerate(pairs, 1):
        base, other = (first, second) if group % 2 else (second, first)
        add(Stage.CONFIRM, claim_studies.BASE, base, group + 1, group)
        add(Stage.CONFIRM, claim_studies.HELPS, other, group + 1, group)
    study = Study(spec=claim_studies.SPEC, space=claim_studies.SPACE, trials=tuple(trials))
    strategy = Verification(claim_studies.HELPS, most_pairs=len(pairs))
    found = strategy.comparison(study)
    return strategy.verdict(study), None if found is None else (found.speedup.low, found.speedup.high)


def counted(pairs, *, step=PAIRS_PER_CLAIM):
    """Verdicts on five pairs at a time, and how wide intervals were at the median.

    With `step` 1 every stretch of five pairs counts; neighbouring ones share four of their five.
    """
    parts = [pairs[k : k + PAIRS_PER_CLAIM] for k in range(0, len(pairs) - PAIRS_PER_CLAIM + 1, step)]
    found = [judged(part) for part in parts]
    widths = sorted(high - low for _, ends in found if ends is not None for low, high in [ends])
    return {
        "comparisons": len(found),
        **{word: sum(verdict == word for verdict, _ in found) for word in VERDICTS},
        "width": round(widths[len(widths) // 2], 4) if widths else None,
    }


def table(totals):
    """Rows for people."""
    lines, wins, n = [], 0, 0
    for name, sums in totals.items():
        pairs = _pairs(sums)
        apart, all_of_them = counted(pairs), counted(pairs, step=1)
        wins, n = wins + apart["faster"], n + apart["comparisons"]
        others = [run["foreign"] or 0.0 for pair in pairs for run in pair]
        lines.append(
            f"{name}: {len(pairs)} pairs beside {sum(others) / len(others):.2f} cores; apart {apart}; "
            f"every stretch {all_of_them}"
        )
    if n:
        most = proofs.upper_bound(wins, n)
        lines.append(f"false wins: {wins} of {n}, at most {most:.1%} (upper 95 % bound)")
    return lines


def main(words=None):
    parser = proofs.options(__doc__, pairs=PAIRS, window=4.0)
    parser.add_argument("--neighbour", choices=neighbours.NEIGHBOURS, default="none")
    chosen = parser.parse_args(words)
    identity = {"window_s": chosen.window, "cores": len(os.sched_getaffinity(0)), "machine": proofs.machine()}
    file = "noise_aa.jsonl"
    if chosen.neighbour != "none":
        identity["neighbour"], file = chosen.neighbour, f"noise_aa_{chosen.neighbour}.jsonl"
    path = chosen.out or HERE / "results" / file
    ledger = proofs.Ledger(path, identity, new=chosen.new, reads=chosen.list)
    # One pair of each in turn: what the machine goes through in between hits all alike.
    wanted = [(name, pair) for pair in range(chosen.pairs) for name in NAMES if chosen.only in name]
    done = True
    if not chosen.list:
        with tempfile.TemporaryDirectory() as folder:
            runners = {
                name: recording.Recording(WORKLOADS / f"{name}.py", chosen.window, Path(folder) / name)
                for name in NAMES
            }

            def work(name, pair):
                runs = [runners[name].run(2 * pair + turn, seed=pair) for turn in (0, 1)]
                if None in runs:
                    raise SystemExit(f"a run of {name} failed; nothing is kept of its pair")
                return {"runs": runs}

            with neighbours.beside(chosen.neighbour):
                done = proofs.carry_out(ledger, wanted, work, jobs=1, limit=chosen.limit)
    totals = ledger.totals()
    print("\n".join(table(totals)))
    if not chosen.list:
        reported = {name: counted(_pairs(sums)) for name, sums in totals.items()}
        path.with_suffix(".json").write_text(json.dumps(reported, indent=1) + "\n")
    if not done:
        print("not all is done; run it again to go on")


def _pairs(sums):
    return list(zip(sums["runs"][::2], sums["runs"][1::2], strict=True))


if __name__ == "__main__":
    main()
