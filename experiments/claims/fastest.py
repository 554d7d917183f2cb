"""How often is the time to equal loss called shorter where it is not, and how often is a true gain found?

    python fastest.py --limit 10m --jobs 2   # as often as it takes; goes on where it stopped
    python fastest.py --list                 # what is done and what it says; runs nothing

The pick `fastest` may train otherwise, and is judged by the time in which it reaches the loss of the script.
So its pairs scatter by what losses do as well as by what the machine does. Here the rates take the courses of
`run.py`, and the losses are those of the scripts that `../loss_guard` simulates: the config learns the same
per sample, from other batches. Of what a seed shifts the losses by it keeps nothing, half or nine tenths. It
runs for half as many samples more, as a search lets such configs do.
"""

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.space import Dimension, SearchSpace
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState
from autotune.search.verification import Verification

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "loss_guard")]

import claim_noise  # noqa: E402 - beside this file, found by the line above
import claim_studies  # noqa: E402 - beside this file, found by the line above
import guard_traces  # noqa: E402 - in a folder beside, found by the line above
import proofs  # noqa: E402 - beside this file, found by the line above
import run  # noqa: E402 - beside this file, found by the line above

OTHER = Config({"effective_batch": 64})
SPACE = SearchSpace(
    dimensions={
        "effective_batch": Dimension(
            knob="effective_batch", values=(32, 64), own=32, effect=Effect.TRAINING, redeals=True
        )
    }
)
RATIOS = {1.0: 2000, 1.2: 500, 2.0: 500}
KEPT = (0.0, 0.5, 0.9)
PART = 50
LONGER = 1.5
"""As `autotune.search.costs` has it."""


def units():
    """(case, part) of everything there is to do."""
    found = [
        (f"{noise}/{ratio:g}", part)
        for noise in ("recorded", "restless")
        for ratio, n in RATIOS.items()
        for part in range((n if noise == "recorded" else n // 2) // PART)
    ]
    return sorted(found, key=lambda unit: unit[1])


def losses(script, seed, kept):
    """A trace of the config, as `guard_traces.Simulated.run` makes them and longer."""
    shared, own = random.Random(f"{script.tag}/{seed}"), random.Random(f"{script.tag}/{seed}/own/0.0")
    shift = kept * shared.gauss(0.0, script.seed_sd) + math.sqrt(1.0 - kept**2) * own.gauss(
        0.0, script.seed_sd
    )
    values = []
    for k in range(1, round(LONGER * guard_traces.STEPS) + 1):
        level = script.level(k)
        noise = own.gauss(0.0, script.batch_sd) * level / 2.0 + own.gauss(0.0, script.rounding)
        values.append(level + shift * k / guard_traces.STEPS + noise)
    return guard_traces.points(values)


def compared(draw, gain, chance):
    """One verification of a config that trains otherwise and is worth `gain`, ln of a ratio of rates."""
    strategy = Verification(OTHER, most_pairs=claim_studies.MOST_PAIRS)
    script, kept = guard_traces.Simulated(chance), chance.choice(KEPT)
    study = Study(spec=claim_studies.SPEC, space=SPACE)
    while (asked := strategy.ask(study, claim_studies.BUDGET_S - study.elapsed_s)) is not None:
        log_rate, foreign = draw.run()
        ours = bool(asked.config)
        rate = claim_studies.RATE * math.exp(log_rate + (gain if ours else 0.0))
        trace = losses(script, asked.seed, kept) if ours else script.run(asked.seed, 0.0, random.Random)
        outcome = replace(claim_studies.measured(rate, foreign, asked.seed), loss=trace)
        trial = Trial(
            number=len(study.trials),
            config=asked.config,
            stage=asked.stage,
            fidelity=asked.fidelity,
            seed=asked.seed,
            group=asked.group,
            state=TrialState.TOLD,
            outcome=outcome,
            seconds=claim_studies.TRIAL_S,
            finished_s=study.elapsed_s + claim_studies.TRIAL_S,
        )
        study = replace(
            study, trials=(*study.trials, trial), elapsed_s=study.elapsed_s + claim_studies.TRIAL_S
        )
    found = strategy.comparison(study)
    by_loss = found is not None and found.loss.level == 2 and found.loss.verdict != "unclear"
    low, high = (found.speedup.low, found.speedup.high) if by_loss else (0.0, math.inf)
    return {
        "n": 1,
        "claimed": int(strategy.verdict(study) == "faster"),
        "unreached": int(not by_loss),
        "held": int(low <= math.exp(gain) <= high),
        "wide": 0.0 if not by_loss else math.log(high / low),
    }


def work(case, part):
    """One part of one case: sums over its comparisons."""
    noise, ratio = case.split("/")
    pool, sums = run.series_of(noise), {}
    for k in range(PART):
        chance = random.Random(f"fastest/{case}/{part}/{k}")
        series = chance.choices(pool, [len(s.processes) for s in pool])[0]
        draw = claim_noise.Draw(series, chance)
        for key, value in compared(draw, math.log(float(ratio)), random.Random(chance.random())).items():
            sums[key] = sums.get(key, 0) + value
    return sums


def table(totals):
    """Rows for people."""
    lines = ["| noise | true ratio | claimed | bounds | loss not reached | ratio in the interval | width |"]
    lines.append("|---|---|---|---|---|---|---|")
    for case, s in sorted(totals.items()):
        noise, ratio = case.split("/")
        low, high = proofs.interval(s["claimed"], s["n"])
        if float(ratio) == 1.0:
            low, high = 0.0, proofs.upper_bound(s["claimed"], s["n"])
        told = f"{s['claimed']} of {s['n']} | {low:.2%} to {high:.2%}"
        lines.append(
            f"| {noise} | {ratio}x | {told} | {s['unreached']} | "
            f"{s['held'] / s['n']:.1%} | {s['wide'] / max(1, s['n'] - s['unreached']):.3f} |"
        )
    return lines


def identity():
    """As `run.py` has it, and what losses are made by and compared by."""
    more = (
        proofs.PACKAGE / "core" / "equal_loss.py",
        HERE.parent / "loss_guard" / "guard_traces.py",
        HERE / "fastest.py",
    )
    return {**run.identity(), "losses": proofs.sources_sha256(*more)}


def main(words=None):
    chosen = proofs.options(__doc__).parse_args(words)
    path = chosen.out or HERE / "results" / "fastest.jsonl"
    ledger = proofs.Ledger(path, identity(), new=chosen.new, reads=chosen.list)
    wanted = [unit for unit in units() if chosen.only in unit[0]]
    done = chosen.list or proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit)
    print("\n".join(table(ledger.totals())))
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
