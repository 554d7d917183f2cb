"""A search for energy: it goes for what takes little of it, among what is faster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from search_world import World, dimension, simulate, spec

from autotune.answer.pick import answer
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.space import SearchSpace
from autotune.model.trial import Outcome, Proposal, Stage
from autotune.search.stages import Staged

JOULES = {("threads", 1): 0.5, ("cores", "few"): 0.6, ("clock", "high"): 1.4}
SPACE = SearchSpace(
    dimensions={
        d.knob: d
        for d in (
            dimension("threads", (1, 4), 4, ordinal=True),
            dimension("cores", ("all", "few"), "all"),
            dimension("clock", ("low", "high"), "low"),
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class Metered(World):
    """A world whose counters are read."""

    def run(self, proposal: Proposal, number: int, compiled: set[Config], salt: int) -> tuple[Outcome, float]:
        outcome, seconds = super().run(proposal, number, compiled, salt)
        if not isinstance(outcome, Measurement):
            return outcome, seconds
        joules = 2.0
        for item in proposal.config.items():
            joules *= JOULES.get(item, 1.0)
        # A little noise, the same in every run of the test.
        spent = joules * outcome.effective_batch * outcome.steps * (1.0 + 0.01 * (number % 3))
        return replace(outcome, extra={"energy_cpu_j": spent}), seconds


WORLD = Metered(
    space=SPACE, speed={("threads", 1): 1.3, ("cores", "few"): 0.9, ("clock", "high"): 1.5}, noise=0.01
)


@pytest.mark.parametrize("objective", ["energy", "throughput"])
def test_a_search_ends_with_what_it_was_for(objective: str) -> None:
    study = simulate(Staged(), WORLD, spec(seconds=900.0, objective=objective))
    best = answer(study).best.config
    assert best.get("threads") == 1
    if objective == "energy":
        assert best.get("cores") == "few", "a little slower than without it, and still faster than the script"
        assert "clock" not in best
        assert all(t.fidelity.dominated_below == 0.0 for t in study.trials), "what is slow may be frugal"
        assert not any(t.stage is Stage.ABLATE for t in study.trials)
    else:
        assert best.get("clock") == "high"
        assert "cores" not in best
