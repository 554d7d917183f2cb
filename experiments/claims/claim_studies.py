"""Searches and verifications on simulated runs, carried through by the code that ships.

`Staged`, `Verification`, `answer` are the program's own; only the training processes are replaced: a run
yields what the machine's course says times what the config is truly worth.
"""

import math
from dataclasses import replace

from autotune.answer.pick import answer
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Contamination, Estimate, LossPoint, Measurement, Memory
from autotune.model.space import Dimension, SearchSpace
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Stage, Trial, TrialState
from autotune.search.confirmation.verification import Verification
from autotune.search.stages import Staged

BASE = Config()
HELPS = Config({"threads": 1})
RATE, BATCH, TRIAL_S = 100.0, 32.0, 10.0
BUDGET_S = 900.0
MOST_PAIRS = 10
_POINTS = 6


def _space():
    """One exact knob and one that rounds otherwise: their product is what there is to find."""
    dimensions = (
        Dimension(knob="threads", values=(1, 2), own=2),
        Dimension(knob="precision", values=("fp32", "bf16"), own="fp32", effect=Effect.NUMERIC),
    )
    return SearchSpace(dimensions={d.knob: d for d in dimensions})


SPACE = _space()
SPEC = StudySpec(
    study_id="proof",
    label="proof",
    script="train.py",
    args=(),
    cwd="",
    python="python",
    space=SpaceRequest(name="proof"),
    budget=Budget(seconds=BUDGET_S),
)


def trace(seed):
    """A loss that depends on the seed alone, so that the guard neither helps nor hinders a claim."""
    return tuple(
        LossPoint(samples=32 * k, loss=2.0 / k + 0.01 * math.sin(seed + k), t_s=0.1 * k)
        for k in range(1, _POINTS + 1)
    )


def measured(rate, foreign, seed):
    """What such a run would have yielded."""
    step_s = BATCH / rate
    return Measurement(
        throughput=Estimate(value=rate, low=0.97 * rate, high=1.03 * rate, n=10, unit="samples/s"),
        step_time_s=Estimate(value=step_s, low=0.97 * step_s, high=1.03 * step_s, n=10, unit="s"),
        data_wait_frac=0.0,
        memory=Memory(pss=2**30),
        loss=trace(seed),
        startup_s=2.0,
        steps=40,
        window_s=4.0,
        effective_batch=BATCH,
        contamination=Contamination(foreign_cpu_frac=foreign),
    )


def carried_through(strategy, draw, worth):
    """The study that a strategy ends with, on a machine that takes this course.

    Args:
        strategy: `Staged` or `Verification`.
        draw: `claim_noise.Draw`.
        worth: Config -> true ln ratio to the unchanged script.
    """
    study = Study(spec=SPEC, space=SPACE)
    while (proposal := strategy.ask(study, BUDGET_S - study.elapsed_s)) is not None:
        log_rate, foreign = draw.run()
        outcome = measured(RATE * math.exp(log_rate + worth(proposal.config)), foreign, proposal.seed)
        trial = Trial(
            number=len(study.trials),
            config=proposal.config,
            stage=proposal.stage,
            fidelity=proposal.fidelity,
            seed=proposal.seed,
            group=proposal.group,
            state=TrialState.FINISHED,
            outcome=outcome,
            seconds=TRIAL_S,
            finished_s=study.elapsed_s + TRIAL_S,
        )
        study = replace(study, trials=(*study.trials, trial), elapsed_s=study.elapsed_s + TRIAL_S + 0.5)
    return study


def up_to(study, cycles):
    """The study as if its time had been over after so many cycles."""
    kept = tuple(t for t in study.trials if t.stage is not Stage.CONFIRM or t.group <= cycles)
    return replace(study, trials=kept)


def searched(draw, gain):
    """A whole search in which one knob is worth this much and the other nothing.

    Returns:
        Figures that add up over searches: ``confirmed`` (a finalist was compared at all), ``claimed``
        at the end, ``claimed_10`` had it ended after ten pairs, ``told`` (something is recommended as best)
        and ``told_held`` (its interval holds what that is truly worth).
    """
    study = carried_through(Staged(), draw, lambda c: gain if c.get("threads") == 1 else 0.0)
    found = answer(study)
    cycles = max((t.group for t in study.trials if t.stage is Stage.CONFIRM), default=0)
    within = found if cycles <= MOST_PAIRS else answer(up_to(study, MOST_PAIRS))
    reported = found.best
    worth = gain if reported.config.get("threads") == 1 else 0.0
    return {
        "n": 1,
        "confirmed": int(cycles > 0),
        "claimed": int(_claims(found, gain)),
        "claimed_10": int(_claims(within, gain)),
        "told": int(bool(reported.config)),
        "told_held": int(bool(reported.config) and _holds(reported.speedup, worth)),
        "cycles": cycles,
    }


def _claims(found, gain):
    """Something other than the unchanged script is recommended; where a knob helps, that knob."""
    picks = [p for p in (found.safe, found.best, found.fastest) if p is not None and p.config]
    return any(p.config.get("threads") == 1 for p in picks) if gain else bool(picks)


def verified(draw, gain):
    """`autotune verify` of one changed knob: ten pairs at most."""
    strategy = Verification(HELPS, most_pairs=MOST_PAIRS)
    study = carried_through(strategy, draw, lambda c: gain if c else 0.0)
    verdict = strategy.verdict(study)
    found = strategy.comparison(study)
    held = found is not None and _holds(found.speedup, gain)
    cycles = max((t.group for t in study.trials if t.stage is Stage.CONFIRM), default=0)
    return {
        "n": 1,
        "confirmed": int(cycles > 0),
        "claimed": int(verdict == "faster"),
        "claimed_10": int(verdict == "faster"),
        "slower": int(verdict == "slower"),
        "held": int(held),
        "told": int(verdict == "faster"),
        "told_held": int(held and verdict == "faster"),
        "cycles": cycles,
    }


def _holds(speedup, worth):
    """The interval holds the true ratio."""
    return speedup.low <= math.exp(worth) <= speedup.high
