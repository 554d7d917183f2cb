"""What changes the training waits, where time is short, for what leaves it as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_change import FIDELITY, RUN_S
from search_world import dimension, loss_trace, measurement, spec, tell

from autotune.core.comparison import compare
from autotune.core.config import Config
from autotune.core.effect import Effect
from autotune.core.pick import answer
from autotune.core.space import SearchSpace
from autotune.core.study import Study
from autotune.core.trial import Proposal, Stage
from autotune.search import confirmation
from autotune.search.stages import Staged

TAME, WILD = Config({"a": 1}), Config({"t": 1})
SPACE = SearchSpace(
    dimensions={
        "a": dimension("a", (0, 1), 0, effect=Effect.NUMERIC),
        "t": dimension("t", (0, 1), 0, effect=Effect.TRAINING),
    }
)
SCREENED = (Config(), Config(), TAME, WILD, Config({"a": 1, "t": 1}))
SHORT_S = RUN_S * (len(SCREENED) + 2 * 9)


def searched(budget_s: float, *, tame: float = 160.0, wild: float = 240.0, scatter: float = 0.1) -> Study:
    """A search from its screening on; `scatter` is of a point of the losses of what changes anything."""
    rates = {Config(): 100.0, TAME: tame, WILD: wild, SCREENED[-1]: 90.0}

    def outcome(study: Study, asked: Proposal):
        own = scatter if asked.config else 1e-4
        trace = loss_trace(seed=asked.seed, jitter_seed=len(study.trials), jitter=own, delay=0.0)
        return measurement(rates[asked.config], loss=trace)

    study = Study(spec=spec(seconds=budget_s), space=SPACE)
    for config in SCREENED:
        stage = Stage.REFINE if config else Stage.BASELINE
        seed = 0 if config else len(study.trials)
        asked = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x", seed=seed)
        study = tell(study, asked, outcome(study, asked), RUN_S)
    while (asked := Staged().ask(study, budget_s - study.elapsed_s)) is not None:
        study = tell(study, asked, outcome(study, asked), RUN_S)
    return study


def runs(study: Study, config: Config) -> list[int]:
    """Cycles of confirmation in which it ran."""
    return [t.group for t in study.told(Stage.CONFIRM) if t.config == config]


def test_where_time_is_short_the_best_has_its_loss_judged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(SHORT_S)
    assert answer(found).best.config == TAME
    assert max(runs(found, TAME)[:3]) < min(runs(found, WILD)), "it began later"
    # What is left then shows the other as well, though hardly a cycle had both.
    assert answer(found).fastest is not None
    monkeypatch.setattr(confirmation, "in_turn", lambda past, active, *_: active)
    at_once = searched(SHORT_S)
    assert runs(at_once, WILD)[0] == 1
    assert not answer(at_once).is_better, "in the same time, with both from the first cycle on"


def test_where_there_is_time_for_all_nobody_waits() -> None:
    found = searched(1200.0)
    assert runs(found, TAME)[0] == runs(found, WILD)[0] == 1


def test_nobody_begins_whom_the_time_leaves_without_the_pairs_of_a_claim() -> None:
    found = searched(RUN_S * (len(SCREENED) + 2 * 7))
    assert answer(found).best.config == TAME
    assert runs(found, WILD) == []


def test_nobody_waits_for_what_cannot_be_shown_to_keep_the_loss() -> None:
    found = searched(SHORT_S, scatter=1.0)
    assert not answer(found).is_better
    assert len(runs(found, WILD)) >= 3


def test_who_begins_after_a_win_is_tested_at_the_winners_level_and_takes_nothing_of_it() -> None:
    found = searched(SHORT_S)
    waited = {c.config: c for c in compare(found)}
    alone = replace(found, trials=tuple(t for t in found.trials if t.config != WILD))
    assert waited[TAME].speedup.confidence == compare(alone)[0].speedup.confidence
    without = replace(found, trials=tuple(t for t in found.trials if t.config != TAME))
    assert waited[WILD].speedup.confidence == compare(without)[0].speedup.confidence
    # Those that begin together share the chance.
    together = {c.config: c for c in compare(searched(1200.0, scatter=0.05))}
    assert len(together[WILD].logs) == len(waited[TAME].logs) == 5
    levels = [1.0 - c.speedup.confidence for c in (waited[TAME], together[WILD])]
    assert levels[0] == pytest.approx(2.0 * levels[1])
