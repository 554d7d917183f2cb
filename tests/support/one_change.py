"""A search of one change whose runs a test makes up, from the end of its screening on."""

from __future__ import annotations

from collections.abc import Callable

from search_world import dimension, spec, tell

from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Measurement
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.search.stages import Staged

CHANGE = Config({"a": 1})
RUN_S = 7.0
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def confirmed(budget_s: float, effect: Effect, outcome: Callable[[Study, Proposal], Measurement]) -> Study:
    """The study that the search ends with; each run takes `RUN_S`.

    Args:
        budget_s: Screening included: two runs of the script, one of the change.
        effect: Of the change.
        outcome: What a run yields, by the study before it.
    """
    space = SearchSpace(dimensions={"a": dimension("a", (0, 1), 0, effect=effect)})
    study = Study(spec=spec(seconds=budget_s), space=space)
    for config in (Config(), Config(), CHANGE):
        stage = Stage.REFINE if config else Stage.BASELINE
        seed = 0 if config else len(study.trials)
        requested = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=seed)
        study = tell(study, requested, outcome(study, requested), RUN_S)
    while (requested := Staged().ask(study, budget_s - study.elapsed_s)) is not None:
        study = tell(study, requested, outcome(study, requested), RUN_S)
    return study


def cycles(study: Study) -> int:
    """Of confirmation, begun."""
    return max((t.group for t in study.finished(Stage.CONFIRM)), default=0)
