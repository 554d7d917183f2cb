"""Cycles beyond the usual ones for a loss that is still open; for a gain see test_more_pairs."""

from __future__ import annotations

from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.inferiority import USUAL_RUNS
from autotune.core.more_cycles import MOST_CYCLES
from autotune.core.pick import answer
from autotune.core.space import SearchSpace
from autotune.core.study import Study
from autotune.core.trial import Fidelity, Proposal, Stage
from autotune.search.stages import Staged

A = Config({"a": 1})
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
SCATTER = 0.125
"""Of a point of a's losses: its runs part from the script's, and are no worse."""
RUN_S = 7.0


def searched(
    budget_s: float, *, rate: float = 160.0, lag: float = 0.0, effect: Effect = Effect.NUMERIC
) -> Study:
    """A search from its screening on, with one change of which the loss is all that is in question."""
    space = SearchSpace(dimensions={"a": dimension("a", (0, 1), 0, effect=effect)})
    study = Study(spec=spec(seconds=budget_s), space=space)

    def run(study: Study, asked: Proposal) -> Study:
        scatter = SCATTER if asked.config else 1e-4
        trace = loss_trace(
            seed=asked.seed, jitter_seed=len(study.trials), jitter=scatter, delay=lag if asked.config else 0.0
        )
        return tell(study, asked, measurement(rate if asked.config else 100.0, loss=trace), RUN_S)

    for config in (Config(), Config(), A):
        stage = Stage.REFINE if config else Stage.BASELINE
        seed = 0 if config else len(study.trials)
        study = run(study, Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=seed))
    while (asked := Staged().ask(study, budget_s - study.elapsed_s)) is not None:
        study = run(study, asked)
    return study


def cycles(study: Study) -> int:
    return max((t.group for t in study.told(Stage.CONFIRM)), default=0)


def test_a_search_goes_on_for_a_loss_that_is_open_while_it_has_time() -> None:
    ended = searched(3600.0)
    assert USUAL_RUNS < cycles(ended) <= MOST_CYCLES
    assert answer(ended).best.config == A


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
