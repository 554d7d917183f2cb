"""Who is run once more before it is believed: nobody where runs agree, else the leader and its rivals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_world import World, dimension, measurement, simulate, spec, tell

from autotune.answer.pick import answer
from autotune.model.config import Config
from autotune.model.space import SearchSpace
from autotune.model.study import Study
from autotune.model.trial import Fidelity, Proposal, Stage
from autotune.search.feature_flags import DEFAULT
from autotune.search.models.throughput_model import ThroughputModel
from autotune.search.screening.replicates import expected_gain, look_again, run_sd
from autotune.search.screening.state import SearchState
from autotune.search.screening.stopping import no_progress
from autotune.search.stages import Staged

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
A, B, C = Config({"a": 1}), Config({"b": 1}), Config({"c": 1})
AB = Config({"a": 1, "b": 1})
SPACE = SearchSpace(dimensions={n: dimension(n, (0, 1), 0) for n in "abc"})
QUIET, NOISY = (100.0, 101.0), (100.0, 115.0)


def studied(baselines: tuple[float, ...], *runs: tuple[Config, float]) -> Study:
    study = Study(spec=spec(seconds=900), space=SPACE)
    for config, rate in [*((Config(), r) for r in baselines), *runs]:
        proposal = Proposal(
            stage=Stage.REFINE if config else Stage.BASELINE, config=config, fidelity=FIDELITY, reason="x"
        )
        study = tell(study, proposal, measurement(rate), 7.0)
    return study


def replicated(study: Study, *among: Config, at_end: bool) -> Config | None:
    model = ThroughputModel.of(study, SPACE)
    assert model is not None
    look = look_again(study, model, among, at_end=at_end)
    return None if look is None else look.config


def test_runs_of_one_config_tell_the_noise_of_single_runs() -> None:
    assert run_sd(studied((100.0,))) == pytest.approx(0.02)
    assert run_sd(studied(QUIET)) < 0.02
    assert run_sd(studied(NOISY)) > 0.05
    # Whatever ran more than once shows it, slow or fast; a single run of another config does not.
    calm = run_sd(studied(QUIET, (A, 150.0), (B, 200.0)))
    assert calm == run_sd(studied(QUIET))
    assert run_sd(studied(QUIET, (A, 150.0), (A, 180.0))) > 2.0 * calm


def test_where_runs_agree_nothing_is_run_twice() -> None:
    study = studied(QUIET, (A, 150.0), (B, 149.0), (AB, 151.0))
    assert replicated(study, A, B, AB, at_end=False) is None
    assert replicated(study, A, B, AB, at_end=True) is None


def test_where_runs_differ_the_leader_is_run_again_once_and_at_the_end_its_rivals_too() -> None:
    runs = ((A, 150.0), (B, 103.0), (AB, 160.0))
    study = studied(NOISY, *runs)
    assert replicated(study, A, B, AB, at_end=False) == AB
    study = studied(NOISY, *runs, (AB, 158.0))
    assert replicated(study, A, B, AB, at_end=False) is None
    assert replicated(study, A, B, AB, at_end=True) == A
    # Once both have two runs and read alike, whoever leads is next.
    study = studied(NOISY, *runs, (AB, 158.0), (A, 168.0))
    assert replicated(study, A, B, AB, at_end=True) in (A, AB)
    study = studied(NOISY, *runs, (AB, 158.0), (A, 151.0))
    assert replicated(study, A, B, AB, at_end=True) is None, "by now runs agree"
    three = [(c, rate) for c, rate in runs for _ in range(3)]
    assert replicated(studied(NOISY, *three), A, B, AB, at_end=True) is None


def test_a_rival_that_is_slower_beyond_doubt_gives_no_reason_to_look() -> None:
    assert replicated(studied(NOISY, (A, 300.0), (B, 100.0)), A, B, at_end=True) is None


def test_what_is_expected_above_zero() -> None:
    assert expected_gain(0.3, 0.0) == 0.3
    assert expected_gain(-0.3, 0.0) == 0.0
    assert expected_gain(0.0, 0.1) == pytest.approx(0.1 / math.sqrt(2.0 * math.pi))
    assert expected_gain(-0.5, 0.1) < 1e-6


def test_a_replicate_has_a_seed_of_its_own_and_a_reason() -> None:
    proposal = Staged().ask(studied(NOISY, (A, 150.0), (B, 103.0), (AB, 160.0)), 600.0)
    assert proposal is not None
    assert (proposal.config, proposal.stage, proposal.seed) == (AB, Stage.REFINE, 1)
    assert proposal.reason.startswith("Once more, as runs of one config differ by ")
    # It would not be cut off for being slower than itself.
    assert proposal.fidelity.dominated_below == 0.0
    without = Staged(parts=replace(DEFAULT, second_looks=False))
    other = without.ask(studied(NOISY, (A, 150.0), (B, 103.0), (AB, 160.0)), 600.0)
    assert other is None or other.config not in (A, B, AB)


def test_the_fall_of_a_lucky_leader_brings_back_hope_for_others() -> None:
    once = studied(NOISY, (A, 150.0))
    twice = studied(NOISY, (A, 150.0), (A, 110.0))
    bars = [SearchState.of(study, SPACE, 600.0, DEFAULT) for study in (once, twice)]
    assert bars[0] is not None
    assert bars[1] is not None
    assert bars[1].best_training_preserving() < bars[0].best_training_preserving() - 0.1


def test_to_look_again_is_no_progress() -> None:
    news = [(Config({"a": a, "b": b, "c": c}), 90.0) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    runs = [(A, 150.0), *((c, r) for c, r in news if c and c != A)]
    study = studied(NOISY, *runs, *[(A, 170.0)] * 8)
    search = SearchState.of(study, SPACE, 600.0, DEFAULT)
    assert search is not None
    assert no_progress(search, 8)


def knobs(count: int) -> SearchSpace:
    return SearchSpace(dimensions={f"k{n}": dimension(f"k{n}", (0, 1), 0) for n in range(count)})


def test_on_a_quiet_machine_the_search_is_the_same_but_for_its_bar() -> None:
    world = World(space=knobs(4), speed={("k1", 1): 1.25}, noise=0.005, input_s=0.0)
    study = simulate(Staged(), world, spec(seconds=300))
    screened = [t.config for t in study.trials if t.stage in (Stage.INITIAL, Stage.REFINE)]
    assert len(screened) == len(set(screened))
    assert answer(study).best.config == Config({"k1": 1})
