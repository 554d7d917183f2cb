"""Cycles beyond the usual ones for a loss that is still open; for a gain see test_more_pairs."""

from __future__ import annotations

from one_change import CHANGE, RUN_S, confirmed, cycles
from search_world import loss_trace, measurement

from autotune.answer.pick import answer
from autotune.compare.extension import MOST_CYCLES
from autotune.loss.non_inferiority import USUAL_RUNS
from autotune.model.effect import Effect
from autotune.model.measurement import Measurement
from autotune.model.study import Study
from autotune.model.trial import Proposal

SCATTER = 0.125
"""Of a point of the losses of the change: its runs part from the script's, and are no worse."""


def searched(
    budget_s: float, *, rate: float = 160.0, lag: float = 0.0, effect: Effect = Effect.NUMERIC
) -> Study:
    """A search from its screening on, with one change of which the loss is all that is in question."""

    def outcome(study: Study, proposal: Proposal) -> Measurement:
        scatter = SCATTER if proposal.config else 1e-4
        trace = loss_trace(
            seed=proposal.seed,
            jitter_seed=len(study.trials),
            jitter=scatter,
            delay=lag if proposal.config else 0.0,
        )
        return measurement(rate if proposal.config else 100.0, loss=trace)

    return confirmed(budget_s, effect, outcome)


def test_a_search_goes_on_for_a_loss_that_is_open_while_it_has_time() -> None:
    ended = searched(3600.0)
    assert USUAL_RUNS < cycles(ended) <= MOST_CYCLES
    assert answer(ended).best.config == CHANGE


def test_without_the_time_it_ends_and_claims_nothing() -> None:
    ended = searched(2 * RUN_S * USUAL_RUNS + 5 * RUN_S)
    assert cycles(ended) <= USUAL_RUNS
    assert not answer(ended).is_better


def test_it_does_not_go_on_for_a_gain_that_has_no_chance() -> None:
    assert cycles(searched(3600.0, rate=100.5)) <= USUAL_RUNS


def test_it_does_not_go_on_for_a_loss_that_is_shown_to_be_worse() -> None:
    ended = searched(3600.0, lag=0.2)
    assert cycles(ended) <= USUAL_RUNS
    assert not answer(ended).is_better


def test_it_does_not_go_on_for_a_change_that_leaves_the_arithmetic() -> None:
    assert cycles(searched(3600.0, effect=Effect.EXACT)) <= USUAL_RUNS
