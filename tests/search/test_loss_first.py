"""Where time is short and the loss of the first is all that is open, it is confirmed alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from one_change import FIDELITY, RUN_S
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.answer.pick import answer
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Proposal, Stage
from autotune.search.feature_flags import DEFAULT, FeatureFlags
from autotune.search.stages import Staged

TAME, WILD = Config({"a": 1}), Config({"t": 1})
SPACE = SearchSpace(
    dimensions={
        "a": dimension("a", (0, 1), 0, effect=Effect.NUMERIC),
        "t": dimension("t", (0, 1), 0, effect=Effect.TRAINING),
    }
)
BOTH = Config({"a": 1, "b": 1})
TWINS = SearchSpace(dimensions={n: dimension(n, (0, 1), 0, effect=Effect.NUMERIC) for n in ("a", "b")})
TWIN_RATES = {Config(): 100.0, TAME: 160.0, Config({"b": 1}): 101.0, BOTH: 161.0}
RATES = {Config(): 100.0, TAME: 160.0, WILD: 240.0, Config({"a": 1, "t": 1}): 90.0}
SHORT_S = RUN_S * (1 + len(RATES) + 2 * 9)


def searched(
    budget_s: float,
    *,
    scatter: float = 0.1,
    space: SearchSpace = SPACE,
    rates: Mapping[Config, float] = RATES,
    salt: int = 0,
    parts: FeatureFlags = DEFAULT,
) -> Study:
    """A search from its screening on; `scatter` is of a point of the losses of what changes anything."""

    def outcome(study: Study, proposal: Proposal):
        own = scatter if proposal.config else 1e-4
        trace = loss_trace(
            seed=proposal.seed, jitter_seed=len(study.trials) + 1000 * salt, jitter=own, delay=0.0
        )
        return measurement(rates[proposal.config], loss=trace)

    study = Study(spec=spec(seconds=budget_s), space=space)
    for config in (Config(), *rates):
        stage = Stage.REFINE if config else Stage.BASELINE
        seed = 0 if config else len(study.trials)
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=seed)
        study = tell(study, proposal, outcome(study, proposal), RUN_S)
    while (proposal := Staged(parts=parts).ask(study, budget_s - study.elapsed_s)) is not None:
        study = tell(study, proposal, outcome(study, proposal), RUN_S)
    return study


def runs(study: Study, config: Config) -> list[int]:
    """Cycles of confirmation in which it ran."""
    return [t.group for t in study.finished(Stage.CONFIRM) if t.config == config]


def proved(*, focuses: bool, twin: bool, scatter: float = 0.1) -> tuple[int, int]:
    """Of twenty searches, how many name a `best`, and how many a `fastest`.

    Beside the first stands a part of it where there is a `twin`, else what changes the training.
    """
    more = {"space": TWINS, "rates": TWIN_RATES} if twin else {}
    parts = replace(DEFAULT, focuses=focuses)
    found = [answer(searched(SHORT_S, scatter=scatter, salt=k, parts=parts, **more)) for k in range(20)]
    return sum(a.is_better for a in found), sum(a.fastest is not None for a in found)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.thorough
def test_where_time_is_short_the_loss_of_the_first_is_shown_more_often(twin: bool) -> None:
    alone, together = proved(focuses=True, twin=twin), proved(focuses=False, twin=twin)
    assert alone[0] > together[0]
    assert twin or alone[1] == together[1] == 20, "what changes the training has its three pairs by then"


def test_the_first_goes_alone_as_long_as_its_loss_is_all_that_is_open() -> None:
    found = searched(SHORT_S, space=TWINS, rates=TWIN_RATES, scatter=0.14)
    assert answer(found).best.config == BOTH
    assert {4, 5} <= set(runs(found, BOTH))
    assert not {4, 5} & set(runs(found, TAME))
    assert runs(found, TAME)[-1] > 5, "the other has what is left"


def test_where_there_is_time_for_all_nobody_goes_alone() -> None:
    found = searched(1200.0, scatter=0.08)
    cycles = [runs(found, c) for c in (TAME, WILD)]
    assert cycles[1] == cycles[0][: len(cycles[1])]
    assert len(cycles[1]) > 3
