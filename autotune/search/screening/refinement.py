"""Refinement: new configs that are worth a run, one function per criterion; pure.

The criteria are the largest expected gain, random discovery and training-changing configs. Others are not
about speed: the cause of a failure, fewer changes, less memory.
"""

from __future__ import annotations

import itertools
import math
import random

from autotune.model.config import Config
from autotune.model.objective import ENERGY
from autotune.model.trial import Stage
from autotune.search.screening.acquisition import LEAST_GAIN, cost_power, score
from autotune.search.screening.candidates import DRAWS, ENUMERABLE, candidate_pool
from autotune.search.screening.feasible import suspect
from autotune.search.screening.frontier import Frontier
from autotune.search.screening.shortlist import trimmed
from autotune.search.screening.state import SearchState, Suggestion

FRONT = "For less memory at the same speed, as"
"""Prefix of the reason of a run for the front, which identifies such runs."""

_APART = "What failed, without its least proven value:"
_DRAWN = 32
_TRAINING_SHARE = 0.25
_TRAINING_FROM_S = 900.0
"""Budget in seconds from which that share is given in turn; proportionally less in a shorter one."""
_FRONT_SHARE = 0.2
_FRONT_GAIN = 0.02


def likeliest(search: SearchState) -> Suggestion | None:
    """Return the largest expected improvement for its cost among training-preserving configs."""
    incumbent = search.best_training_preserving()
    scored = score(search, (c for c in candidate_pool(search) if search.training_preserving(c)), incumbent)
    if not scored:
        return None
    _, gain, config = max(scored, key=lambda s: (s[0], s[2].canonical()))
    if gain < LEAST_GAIN and sum(1 for t in search.study.trials if t.stage is Stage.REFINE) >= 3:
        return None
    mean, sd = search.model.predict(config)
    low, high = math.exp(mean - 2 * sd), math.exp(mean + 2 * sd)
    return Suggestion(
        config,
        f"Predicted {math.exp(mean):.2f} [{low:.2f}, {high:.2f}] times the baseline, runs with "
        f"p = {search.feasible.works(config):.2f}, {search.costs.screening(config):.0f} s.",
    )


def random_draw(search: SearchState) -> Suggestion | None:
    """Return the random config with the most new pairs of changes for its cost.

    Effects outside the model are found by chance alone, and sooner by a config with many new pairs.
    """
    space, draw = search.space, random.Random(f"{search.study.spec.seed}/{search.trials}/free")
    if space.size_bound() <= ENUMERABLE:
        pool = list(space.enumerate())
        draw.shuffle(pool)
    else:
        free = space.free()
        completed = [space.complete({d.knob: draw.choice(d.values) for d in free}) for _ in range(DRAWS)]
        pool = [c for c in completed if isinstance(c, Config)]
    likely = (c for c in pool if search.training_preserving(c) and search.hopeful(c) and search.may_try(c))
    likely = (c for c in likely if search.conceivable(c))
    drawn = list(itertools.islice(likely, _DRAWN))
    if not drawn:
        return None
    known = {pair for c in search.model.seen for pair in itertools.combinations(c.items(), 2)}
    power = cost_power(search)

    def worth(config: Config) -> float:
        new = sum(pair not in known for pair in itertools.combinations(config.items(), 2))
        return new * search.feasible.works(config) / max(0.1, search.costs.screening(config)) ** power

    return Suggestion(max(drawn, key=worth), "Drawn at random, to find what the model does not predict.")


def training_changing(search: SearchState, *, in_turn: bool = False) -> Suggestion | None:
    """Return a training-changing config while such configs have used less than their share of the time.

    Args:
        search: Current state.
        in_turn: Training-preserving configs are left. In a short search they come first, as only they are
            recommended by default.
    """
    scale = min(1.0, search.study.spec.budget.seconds / _TRAINING_FROM_S) if in_turn else 1.0
    left_s = left_for_training_changing_s(search, scale)
    # One run of a refused config is enough to show its speed; it does not block the others.
    looked = any(search.refused(t.config) for t in search.study.trials)
    pool = [c for c in candidate_pool(search) if not search.training_preserving(c) and search.permitted(c)]
    pool = [c for c in pool if not (looked and search.refused(c))]
    incumbent = max((y for c, y in search.model.seen.items() if not search.refused(c)), default=0.0)
    if not pool:
        return None
    scored = [s for s in score(search, pool, incumbent) if search.costs.screening(s[2]) <= left_s]
    if not scored:
        return None
    _, gain, config = max(scored, key=lambda s: (s[0], s[2].canonical()))
    if gain < LEAST_GAIN:
        return None
    ratio = math.exp(search.model.predict(config)[0])
    return Suggestion(config, f"Changes the training; {ratio:.2f} times the baseline's throughput expected.")


def left_for_training_changing_s(search: SearchState, scale: float = 1.0) -> float:
    """Return the seconds of screening left for training-changing configs: their share of its whole time.

    Pending runs count with their expected duration. `scale` multiplies the share.
    """
    finished = search.study.finished(Stage.INITIAL, Stage.REFINE)
    spent = sum(t.seconds for t in finished if not search.training_preserving(t.config))
    running = [t.config for t in search.study.open_trials if not search.training_preserving(t.config)]
    spent += sum(search.costs.screening(config) for config in running)
    whole = sum(t.seconds for t in finished) + max(0.0, search.spare_s)
    return scale * _TRAINING_SHARE * whole - spent


def simpler(search: SearchState) -> Suggestion | None:
    """Return the best so far without changes of no predicted effect; it replaces the best if equally fast."""
    model = search.model
    best = max(
        (c for c in model.seen if search.training_preserving(c)),
        key=lambda c: (model.predict(c)[0], c.canonical()),
    )
    config = trimmed(search.space, model, best)
    if config == best or not config or not search.may_try(config):
        return None
    out = ", ".join(k for k in search.space.resolved_free(best) if k not in config)
    return Suggestion(config, f"The best so far without changes that seem to have no effect: {out}.")


def separating(search: SearchState) -> Suggestion | None:
    """Return a config that separates a failing value from its other changes."""
    last = next((t for t in reversed(search.study.finished()) if t.failure is not None), None)
    if last is None or last.reason.startswith(_APART) or not search.parts.separates:
        return None  # another failure has another reason, and one such run is enough
    config = suspect(search.study, search.feasible)
    if config is None or not search.training_preserving(config) or not search.may_try(config):
        return None
    return Suggestion(config, f"{_APART} is that to blame?")


def for_front(search: SearchState) -> Suggestion | None:
    """Return the most memory spared for its speed if no gain in speed is expected; for part of the time."""
    if not search.parts.front_share or search.study.spec.objective == ENERGY:
        return None
    finished = search.study.finished(Stage.INITIAL, Stage.REFINE)
    whole = sum(t.seconds for t in finished) + max(0.0, search.spare_s)
    spent = sum(t.seconds for t in finished if t.reason.startswith(FRONT))
    seen = [c for c in search.model.seen if search.training_preserving(c)]
    front = Frontier(search.study, search.model, search.feasible.memory, seen)
    worth: list[tuple[float, Config]] = []
    for config in candidate_pool(search):
        cost_s = search.costs.screening(config)
        if (
            not search.training_preserving(config)
            or not search.may_try(config)
            or spent + cost_s > _FRONT_SHARE * whole
        ):
            continue
        gain = front.gain(config) * search.feasible.works(config)
        if gain >= _FRONT_GAIN:
            worth.append((gain / max(0.1, cost_s), config))
    if not worth:
        return None
    _, config = max(worth, key=lambda w: (w[0], w[1].canonical()))
    return Suggestion(config, f"{FRONT} nothing faster is expected.")
