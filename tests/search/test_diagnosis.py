"""When a process is spent on finding out what holds a script back."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from search_world import World, simulate, spec, tell, usual_space

from autotune.model.config import Config
from autotune.model.distributed_launch import several
from autotune.model.facts import DeviceFacts, Facts
from autotune.model.study import Study
from autotune.model.trial import CEILINGS, Failure, FailureKind, Stage
from autotune.search.costs import Costs
from autotune.search.diagnosis import nsys_s, probe_s, reserved_s, spare_probe
from autotune.search.stages import Staged

BASE = Config()
WORLD = World(space=usual_space(), speed={("precision", "bf16"): 1.6, ("threads", 4): 1.2})
LONG = spec(seconds=900.0, why=True)


def search(study_spec=LONG, world=WORLD) -> Study:
    return simulate(Staged(), world, study_spec)


@functools.cache
def long_search() -> Study:
    """The usual one, made once."""
    return search()


def stages(study: Study) -> list[Stage]:
    return [t.stage for t in study.trials]


@pytest.mark.thorough
def test_script_and_winner_are_probed_once_nothing_is_left_to_try_or_to_confirm() -> None:
    found = long_search()
    probes = [t for t in found.trials if t.stage is Stage.DIAGNOSE]
    assert stages(found)[1] is Stage.INITIAL
    assert stages(found)[-2:] == [Stage.DIAGNOSE, Stage.DIAGNOSE]
    assert [t.config.is_baseline for t in probes] == [True, False]
    assert probes[1].config.get("precision") == "bf16"
    assert all(t.fidelity.probe == "why" for t in probes)
    others = [t.fidelity.probe for t in found.trials if t.stage is not Stage.DIAGNOSE]
    assert others[0] == CEILINGS
    assert not any(others[1:])
    assert found.elapsed_s <= 900.0


@pytest.mark.parametrize(
    "kept_apart", [{"why": False}, {"why": True, "trials": 20}, {"why": True, "launcher": several(2)}]
)
def test_the_first_run_counts_steps_where_a_probe_may_look_into_the_script(
    kept_apart: dict[str, object],
) -> None:
    def probe(**more: object) -> str:
        proposal = Staged().ask(Study(spec=spec(**more), facts=WORLD.facts()), 180.0)
        assert proposal is not None
        return proposal.fidelity.probe

    assert probe(why=True) == CEILINGS
    assert not probe(**kept_apart)


@pytest.mark.thorough
def test_a_probe_is_charged_to_the_budget_and_comes_last_in_a_short_one() -> None:
    short = stages(search(spec(seconds=120.0, why=True)))
    assert set(short[short.index(Stage.DIAGNOSE) :] if Stage.DIAGNOSE in short else ()) <= {Stage.DIAGNOSE}
    assert Stage.DIAGNOSE not in stages(search(spec(seconds=900.0, why=False)))
    assert Stage.DIAGNOSE not in stages(search(spec(seconds=900.0, trials=20, why=True)))


def test_a_minute_is_spent_on_candidates_and_pairs_and_not_on_a_probe() -> None:
    found = search(spec(seconds=60.0, why=True))
    assert stages(found)[0] is Stage.BASELINE
    assert Stage.DIAGNOSE not in stages(found)
    assert sum(t.seconds for t in found.trials if t.config) >= 20.0
    assert 50.0 <= found.elapsed_s <= 60.0


def test_a_long_search_keeps_time_for_both_probes_and_a_short_one_keeps_none() -> None:
    made, costs = long_search(), Costs.of(long_search())
    made = replace(made, trials=tuple(t for t in made.trials if t.stage is not Stage.DIAGNOSE))
    assert reserved_s(made, costs, BASE) == 0.0
    longer = replace(made, spec=replace(made.spec, budget=replace(made.spec.budget, seconds=3600.0)))
    assert reserved_s(longer, costs, BASE) == 2.0 * probe_s(longer, costs, BASE) > 0.0


def test_both_are_probed_at_the_end_where_a_short_search_has_won_early() -> None:
    fast = World(space=usual_space(), speed={("precision", "bf16"): 4.0}, noise=0.001)
    found = search(spec(seconds=200.0, why=True), world=fast)
    probes = [t.config for t in found.trials if t.stage is Stage.DIAGNOSE]
    assert [config.is_baseline for config in probes] == [True, False]
    assert {t.stage for t in found.trials[-2:]} == {Stage.DIAGNOSE}
    assert found.elapsed_s <= 200.0


@pytest.mark.slow  # a whole search
def test_where_nothing_wins_only_the_script_is_probed() -> None:
    flat = World(space=usual_space(training=False), speed={("precision", "bf16"): 0.7}, input_s=0.0)
    probes = [t for t in search(world=flat).trials if t.stage is Stage.DIAGNOSE]
    assert all(t.config.is_baseline for t in probes)
    assert len(probes) == 1


def test_a_probe_that_failed_is_not_proposed_again() -> None:
    made = long_search()
    kept = tuple(t for t in made.trials if t.stage is not Stage.DIAGNOSE)
    study, costs = replace(made, trials=kept), Costs.of(made)
    failure = Failure(kind=FailureKind.TIMEOUT_TOTAL, message="not done")
    requested: list[bool] = []
    while (proposal := spare_probe(study, costs, 200.0)) is not None:
        requested.append(proposal.config.is_baseline)
        study = tell(study, proposal, failure, 8.0)
    assert requested == [True, False]


def test_nothing_is_probed_beside_another_trial_or_before_anything_was_measured() -> None:
    empty = Study(spec=LONG, facts=WORLD.facts(), space=WORLD.space)
    costs = Costs.of(empty)
    assert probe_s(empty, costs, BASE) == 0.0
    assert spare_probe(empty, costs, 900.0) is None
    assert spare_probe(replace(long_search(), trials=long_search().trials[:5]), costs, 900.0) is None


class Traced(World):
    """A machine that has Nsight Systems."""

    def facts(self) -> Facts:
        made = super().facts()
        return replace(made, host=replace(made.host, nsys="/opt/nsys"))


TRACED = Traced(space=WORLD.space, speed=WORLD.speed)


@pytest.mark.thorough  # a whole search
def test_where_nsight_systems_is_installed_a_profile_has_a_second_run_under_it() -> None:
    found = search(spec(seconds=900.0, why=True, profile=True), world=TRACED)
    probes = [t for t in found.trials if t.stage is Stage.DIAGNOSE]
    kinds = [(t.config.is_baseline, t.fidelity.probe) for t in probes]
    assert kinds == [(True, "profile"), (True, "nsys_whole"), (False, "profile"), (False, "nsys_whole")]
    assert all(t.fidelity.setup_s <= t.fidelity.deadline_s for t in probes)
    assert found.elapsed_s <= 900.0


def test_without_a_profile_or_after_a_failure_nothing_runs_under_it() -> None:
    made, costs = long_search(), Costs.of(long_search())
    assert nsys_s(made, costs, BASE) == 0.0
    proposal = replace(made, spec=replace(made.spec, profile=True), facts=TRACED.facts())
    assert nsys_s(proposal, costs, BASE) > probe_s(proposal, costs, BASE) > 0.0
    first = proposal.finished(Stage.DIAGNOSE)[0]
    failed = replace(
        first,
        fidelity=replace(first.fidelity, probe="nsys"),
        outcome=Failure(kind=FailureKind.NO_METRIC, message="nsys left no report"),
    )
    assert nsys_s(proposal.with_trial(failed), costs, BASE) == 0.0


def test_on_a_device_a_window_is_recorded() -> None:
    facts = TRACED.facts()
    assert facts.run is not None
    device = DeviceFacts(name="x", uuid="u", memory_bytes=1)
    made = replace(
        long_search(),
        spec=replace(long_search().spec, profile=True),
        facts=replace(facts, run=replace(facts.run, devices=(device,))),
        trials=tuple(
            t for t in long_search().trials if t.stage is not Stage.DIAGNOSE or t.config.is_baseline
        ),
    )
    proposal = spare_probe(made, Costs.of(made), 800.0)
    assert proposal is not None
    assert proposal.fidelity.probe == "nsys"


def test_both_runs_of_a_profile_have_to_fit_into_the_fifth_that_is_theirs() -> None:
    made = long_search()
    proposal = replace(made, spec=replace(made.spec, profile=True), facts=TRACED.facts())
    costs = Costs.of(made)
    first, second = probe_s(proposal, costs, BASE), nsys_s(proposal, costs, BASE)
    assert 0.0 < first < second

    def within(seconds: float) -> float:
        budget = replace(proposal.spec.budget, seconds=seconds)
        return nsys_s(replace(proposal, spec=replace(proposal.spec, budget=budget)), costs, BASE)

    assert within(5.0 * (first + second) + 1.0) == second
    assert within(5.0 * second + 1.0) == 0.0
