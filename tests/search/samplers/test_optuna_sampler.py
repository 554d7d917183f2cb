"""Optuna behind our own rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import measurement, spec, tell, usual_space

from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage
from autotune.search.samplers.optuna_sampler import OptunaSampler

SPACE = usual_space()
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


def study(*configs: dict[str, object]) -> Study:
    built = Study(spec=spec(), space=SPACE)
    for k, values in enumerate([{}, *configs]):
        stage = Stage.REFINE if values else Stage.BASELINE
        config = Config(values)  # type: ignore[arg-type]
        proposal = Proposal(stage=stage, config=config, fidelity=FIDELITY, reason="x")
        failed = values.get("precision") == "bf16"
        crash = Failure(kind=FailureKind.OOM_CUDA, message="out of memory")
        built = tell(built, proposal, crash if failed else measurement(100.0 + k), 7.0)
    return built


@pytest.mark.parametrize("kind", ["tpe", "random", "nsga2"])
def test_a_sampler_proposes_new_complete_configs_and_repeats_itself_when_proposed_again(kind: str) -> None:
    known = study({"num_workers": 2}, {"precision": "bf16"}, {"threads": 4}, {"num_workers": 4})
    sampler = OptunaSampler(kind)
    proposed = [sampler.propose(known, SPACE, n) for n in range(4)]
    for config in proposed:
        assert config is not None
        assert SPACE.contains(config)
        assert config not in {t.config for t in known.trials}
    assert [OptunaSampler(kind).propose(known, SPACE, n) for n in range(4)] == proposed
    assert len(set(proposed)) > 1


def test_an_exhausted_space_yields_nothing() -> None:
    tiny = replace(SPACE, dimensions={"threads": SPACE.dimensions["threads"]}, rules=(), starts=())
    known = replace(study({"threads": 1}, {"threads": 4}), space=tiny)
    assert OptunaSampler("tpe").propose(known, tiny, 0) is None


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(UsageError, match="no sampler"):
        OptunaSampler("bogus")
