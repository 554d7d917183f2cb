"""Which runs of a cycle had the same machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_world import World, measurement, spec, tell, usual_space

from autotune.compare.rounds import alike, alike_cycles, disturbed_pairs
from autotune.model.config import Config
from autotune.model.measurement import Contamination
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Fidelity, Proposal, Stage, Trial

BASE, OTHER = Config(), Config({"precision": "bf16"})
FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)


@pytest.mark.parametrize(
    ("cores", "other", "cpus", "same"),
    [
        (0.05, 0.3, 2, True),
        (0.1, 1.0, 2, False),
        (1.0, 0.55, 2, True),  # a constant neighbour beside a hungrier config
        (20.0, 17.0, 64, True),
        (0.2, 2.5, 64, True),  # a twentieth of the machine
        (0.2, 12.0, 64, False),
        (8.0, 3.0, 64, False),
    ],
)
def test_two_runs_are_alike_by_what_others_used(cores: float, other: float, cpus: int, same: bool) -> None:
    assert alike(cores, other, cpus) is same
    assert alike(other, cores, cpus) is same


def study_of(*cycles: dict[Config, float | None]) -> Study:
    """Cycles of (config -> foreign cores, None for a failed run)."""
    world = World(space=usual_space(), speed={})
    study = replace(Study(spec=spec(), facts=world.facts()), space=world.space)
    for group, cycle in enumerate(cycles, start=1):
        for config, cores in cycle.items():
            proposal = Proposal(
                stage=Stage.CONFIRM, config=config, fidelity=FIDELITY, reason="", seed=group, group=group
            )
            if cores is None:
                outcome = Failure(kind=FailureKind.CRASH_EXIT, message="gone")
            else:
                seen = Contamination(run_queue_frac=0.0, foreign_cpu_frac=cores)
                outcome = replace(measurement(100.0), contamination=seen)
            study = tell(study, proposal, outcome, 5.0)
    return study


def test_a_pair_with_a_neighbour_in_one_half_is_set_aside_and_counted() -> None:
    study = study_of({BASE: 0.1, OTHER: 0.1}, {BASE: 0.1, OTHER: 1.0})
    assert sorted(alike_cycles(study, Stage.CONFIRM, BASE)) == [1]
    assert disturbed_pairs(study, Stage.CONFIRM, BASE) == 1


def test_a_cycle_without_its_reference_holds_no_pair_to_set_aside() -> None:
    study = study_of({BASE: 0.1, OTHER: 0.1}, {OTHER: 0.1}, {BASE: None, OTHER: 0.1})
    assert disturbed_pairs(study, Stage.CONFIRM, BASE) == 0


def test_runs_of_one_config_carry_the_shortest_compile_of_them() -> None:
    study = study_of({BASE: 0.1, OTHER: 0.1}, {BASE: 0.1, OTHER: 0.1}, {BASE: 0.1, OTHER: 0.1})
    took_s = iter((60.0, 4.0, 3.0))
    trials = tuple(
        replace(t, outcome=replace(t.measurement, compile_s=next(took_s)))
        if t.config == OTHER and t.measurement
        else t
        for t in study.trials
    )
    cycles = alike_cycles(replace(study, trials=trials), Stage.CONFIRM, BASE)
    charged = [runs[OTHER].measurement for runs in cycles.values()]
    assert [m.compile_s for m in charged if m is not None] == [3.0, 3.0, 3.0]
    assert [runs[BASE] for runs in cycles.values()] == [t for t in trials if t.config == BASE]


def test_what_was_compiled_after_the_window_belongs_to_the_compile_of_a_run() -> None:
    study = study_of({BASE: 0.1, OTHER: 0.1}, {BASE: 0.1, OTHER: 0.1})
    took_s = iter(((3.0, 20.0), (8.0, 2.0)))

    def compiled(trial: Trial) -> Trial:
        if trial.config != OTHER or trial.measurement is None:
            return trial
        first_s, late_s = next(took_s)
        outcome = replace(trial.measurement, compile_s=first_s, late_compile_s=late_s)
        return replace(trial, outcome=outcome)

    trials = tuple(map(compiled, study.trials))
    cycles = alike_cycles(replace(study, trials=trials), Stage.CONFIRM, BASE)
    charged = [runs[OTHER].measurement for runs in cycles.values()]
    assert [(m.compile_s, m.late_compile_s) for m in charged if m is not None] == [(8.0, 2.0)] * 2
