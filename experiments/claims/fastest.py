"""How often is the time to equal loss called shorter where it is not, and how often is a true gain found?

    python fastest.py --limit 10m --jobs 2   # as often as it takes; goes on where it stopped
    python fastest.py --list                 # what is done and what it says; runs nothing

The pick `fastest` may train otherwise, and is judged by the time in which it reaches the loss of the script.
So its pairs scatter by what losses do as well as by what the machine does. Here the rates take the courses of
`run.py`, and the losses are those of the scripts that `../loss_guard` simulates: the config learns the same
per sample, from other batches. Of what a seed shifts the losses by it keeps nothing, half or nine tenths. It
runs for half as many samples more, as a search lets such configs do.

And configs of a higher rate that must not be claimed: `slower/2` and `slower/1.5`, at so many times the rate,
learn so much less per sample that they are worth 0.9; `plateau/N` learns the same at twice the rate, until
its loss stays N true margins (the script's spread from seed to seed) above what the script has over 65 to
80 % of its run: it never gets there.
"""

import math
import random
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Trial, TrialState
from autotune.search.confirmation.verification import Verification

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "loss_guard")]

import claim_noise  # noqa: E402 (needs the path set above)
import claim_studies  # noqa: E402 (needs the path set above)
import guard_traces  # noqa: E402 (needs the path set above)
import proofs  # noqa: E402 (needs the path set above)
import run  # noqa: E402 (needs the path set above)

OTHER = Config({"effective_batch": 64})
SPACE = SearchSpace(
    dimensions={
        "effective_batch": Dimension(
            knob="effective_batch", values=(32, 64), own=32, effect=Effect.TRAINING, changes_rng_streams=True
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What a config is truly like.

    Args:
        n: Comparisons on `recorded` noise.
        restless: The same on `restless` noise.
        rate: Ratio of its rate to the script's.
        learns: Samples of the script that one of its samples is worth.
        plateau: Where its loss stays, in margins above the script's; None where it goes on falling.
    """

    n: int
    restless: int = 0
    rate: float
    learns: float = 1.0
    plateau: float | None = None

    @property
    def worth(self):
        """The true ratio; 0 where it never gets there."""
        return self.rate * self.learns if self.plateau is None else 0.0

    def level(self, script):
        """Its loss after k steps without noise."""
        if self.plateau is None:
            return lambda k: script.level(k * self.learns)
        late = range(math.floor(0.65 * guard_traces.STEPS) + 1, round(0.8 * guard_traces.STEPS) + 1)
        least = statistics.fmean(map(script.level, late)) + self.plateau * script.spread()
        return lambda k: max(script.level(k), least)


CASES = {
    "1": Planted(n=2000, restless=1000, rate=1.0),
    "1.2": Planted(n=1000, restless=250, rate=1.2),
    "2": Planted(n=1000, restless=250, rate=2.0),
    "slower/2": Planted(n=500, rate=2.0, learns=0.45),
    "slower/1.5": Planted(n=500, rate=1.5, learns=0.6),
    "plateau/1": Planted(n=1000, rate=2.0, plateau=1.0),
    "plateau/2": Planted(n=500, rate=2.0, plateau=2.0),
}
DRAWS = "fastest"
"""What chance is drawn by; figures to choose by are made with another word."""
KEPT = (0.0, 0.5, 0.9)
PART = 50
LONGER = 1.5
"""As `autotune.search.costs` has it."""


def units():
    """(case, part) of everything there is to do."""
    found = [
        (f"{noise}/{name}", part)
        for noise in ("recorded", "restless")
        for name, planted in CASES.items()
        for part in range((planted.n if noise == "recorded" else planted.restless) // PART)
    ]
    return sorted(found, key=lambda unit: unit[1])


def losses(script, seed, kept, level):
    """A trace of the config, as `guard_traces.Simulated.run` makes them and longer."""
    shared, own = random.Random(f"{script.tag}/{seed}"), random.Random(f"{script.tag}/{seed}/own/0.0")
    shift = kept * shared.gauss(0.0, script.seed_sd) + math.sqrt(1.0 - kept**2) * own.gauss(
        0.0, script.seed_sd
    )
    values = []
    for k in range(1, round(LONGER * guard_traces.STEPS) + 1):
        noise = own.gauss(0.0, script.batch_sd) * script.level(k) / 2.0 + own.gauss(0.0, script.rounding)
        values.append(level(k) + shift * k / guard_traces.STEPS + noise)
    return guard_traces.points(values)


def compared(draw, planted, chance):
    """One verification of a config that trains otherwise."""
    strategy = Verification(OTHER, most_pairs=claim_studies.MOST_PAIRS)
    script, kept = guard_traces.Simulated(chance), chance.choice(KEPT)
    study, gain, level = (
        Study(spec=claim_studies.SPEC, space=SPACE),
        math.log(planted.rate),
        planted.level(script),
    )
    while (requested := strategy.ask(study, claim_studies.BUDGET_S - study.elapsed_s)) is not None:
        log_rate, foreign = draw.run()
        ours = bool(requested.config)
        rate = claim_studies.RATE * math.exp(log_rate + (gain if ours else 0.0))
        trace = (
            losses(script, requested.seed, kept, level)
            if ours
            else script.run(requested.seed, 0.0, random.Random)
        )
        outcome = replace(claim_studies.measured(rate, foreign, requested.seed), loss=trace)
        trial = Trial(
            number=len(study.trials),
            config=requested.config,
            stage=requested.stage,
            fidelity=requested.fidelity,
            seed=requested.seed,
            group=requested.group,
            state=TrialState.FINISHED,
            outcome=outcome,
            seconds=claim_studies.TRIAL_S,
            finished_s=study.elapsed_s + claim_studies.TRIAL_S,
        )
        study = replace(
            study, trials=(*study.trials, trial), elapsed_s=study.elapsed_s + claim_studies.TRIAL_S
        )
    found = strategy.comparison(study)
    by_loss = found is not None and found.loss.level == 2 and found.loss.verdict != "unclear"
    # Told with or without a claim: a sentence with a ratio in it, and its interval beside it.
    is_reported = found is not None and "times as fast" in found.loss.reason
    low, high = (found.speedup.low, found.speedup.high) if is_reported else (0.0, math.inf)
    return {
        "n": 1,
        "claimed": int(strategy.verdict(study) == "faster"),
        "unshown": int(not by_loss),
        "told": int(is_reported),
        "held": int(is_reported and low <= planted.worth <= high),
        "wide": math.log(high / low) if is_reported and low > 0.0 and high < math.inf else 0.0,
    }


def work(case, part):
    """One part of one case: sums over its comparisons."""
    noise, _, name = case.partition("/")
    pool, sums = run.series_of(noise), {}
    for k in range(PART):
        chance = random.Random(f"{DRAWS}/{case}/{part}/{k}")
        series = chance.choices(pool, [len(s.processes) for s in pool])[0]
        draw = claim_noise.Draw(series, chance)
        for key, value in compared(draw, CASES[name], random.Random(chance.random())).items():
            sums[key] = sums.get(key, 0) + value
    return sums


def table(totals):
    """Rows for people."""
    lines = [
        "| noise | config | true ratio | claimed | bounds | loss not shown | ratio in the interval | width |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for case, s in sorted(totals.items()):
        noise, _, name = case.partition("/")
        worth = CASES[name].worth
        low, high = proofs.interval(s["claimed"], s["n"])
        if worth <= 1.0:
            low, high = 0.0, proofs.upper_bound(s["claimed"], s["n"])
        true = f"{worth:.2g}x" if worth else "never there"
        held = f"{s['held']} of {s['told']}" if worth else "-"
        lines.append(
            f"| {noise} | {name} | {true} | {s['claimed']} of {s['n']} | {low:.2%} to {high:.2%} | "
            f"{s['unshown']} | {held} | {s['wide'] / max(1, s['told']):.3f} |"
        )
    return lines


def identity():
    """As `run.py` has it, and what losses are made by and compared by."""
    more = (
        proofs.PACKAGE / "loss",
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
