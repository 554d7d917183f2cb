"""Replication: the config to run again where runs differ, and trials justified by noise; pure."""

from __future__ import annotations

from autotune.compare.finalists import may_win
from autotune.model.config import Config
from autotune.model.trial import Proposal, Stage
from autotune.search.screening.acquisition import LEAST_GAIN
from autotune.search.screening.candidates import candidate_pool
from autotune.search.screening.replicates import NOISY, Replicate, leading, look_again, run_sd
from autotune.search.screening.state import SearchState, Suggestion
from autotune.statistics.intervals import expected_gain

AGAIN = "Once more, as"
"""Prefix of the reason of a replicate, which identifies such runs."""

_BASE = Config()


def second_look(search: SearchState) -> Proposal | None:
    """Return a replicate of a possibly lucky leader; None if that is worth no run."""
    look = _look_again(search, at_end=False)
    return None if look is None else _again(search, look)


def last_doubts(search: SearchState) -> Proposal | None:
    """Return a trial whose gain is expected only because of the noise between runs; None without one."""
    sd = run_sd(search.study)
    if not search.parts.second_looks or sd < NOISY:
        return None
    look, picked = _look_again(search, at_end=True), None
    seen = [c for c in search.model.seen if search.training_preserving(c)]
    if seen:
        doubts, leader = search.model.doubting(sd), leading(search.model, seen)
        at = search.model.point(leader)
        gains = [
            (expected_gain(*doubts.difference(search.model.point(c), at)) * search.feasible.works(c), c)
            for c in candidate_pool(search)
            if search.training_preserving(c) and search.hopeful(c) and search.may_try(c)
        ]
        gain, config = max(gains, key=lambda g: (g[0], g[1].canonical()), default=(0.0, _BASE))
        if gain >= max(LEAST_GAIN, look.gain if look else 0.0):
            picked = Suggestion(
                config, f"Runs of one config differ by {sd:.0%} here, so it may still gain {gain:.1%}."
            )
    if picked is None and look is not None:
        return _again(search, look)
    return search.proposal(Stage.REFINE, picked)


def _look_again(search: SearchState, *, at_end: bool) -> Replicate | None:
    if not search.parts.second_looks:
        return None
    seen = [c for c in search.model.seen if c and search.training_preserving(c) and may_win(search.study, c)]
    seen = [c for c in seen if search.affordable(c)]
    if not seen or search.model.predict(leading(search.model, seen))[0] <= 0.0:
        return None
    return look_again(search.study, search.model, seen, at_end=at_end)


def _again(search: SearchState, look: Replicate) -> Proposal:
    """Return the proposal without a cut-off for slow runs: its lowest speed is of interest."""
    reason = (
        f"{AGAIN} runs of one config differ by {look.run_sd:.0%} here: another run may gain {look.gain:.1%}."
    )
    fidelity = search.costs.fidelity(
        Stage.REFINE, look.config, remaining_s=search.remaining_s, reserve_s=search.reserve_s
    )
    return Proposal(stage=Stage.REFINE, config=look.config, fidelity=fidelity, reason=reason, seed=look.runs)
