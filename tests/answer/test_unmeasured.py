"""A first run that met its deadline says nothing against the script; one that failed does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import facts, reported, spec

from autotune.answer.unmeasured import budget_wanted, ended_by_budget
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Failure, FailureKind, Stage

TOTAL, PROGRESS, SHORT = FailureKind.TIMEOUT_TOTAL, FailureKind.TIMEOUT_PROGRESS, FailureKind.WARMUP_SHORT


@pytest.mark.parametrize(
    ("kind", "evidence", "setup_s", "imports", "expected"),
    [
        (TOTAL, {"steps": 0}, 60.0, (), True),
        (TOTAL, {"steps": 9}, 60.0, ("jax",), True),
        (TOTAL, {"steps": 0}, 60.0, ("jax",), False),
        (PROGRESS, {"steps": 0}, 60.0, (), True),
        (PROGRESS, {"steps": 0}, 20.0, (), False),
        (PROGRESS, {"steps": 9}, 60.0, (), False),
        (SHORT, {"deadline_s": 60.0}, 60.0, (), True),
        (SHORT, {"steps": 3}, 60.0, (), False),
        (FailureKind.CRASH_EXIT, {"steps": 0}, 60.0, (), False),
    ],
)
def test_only_a_run_that_met_its_deadline_was_ended_by_the_budget(kind, evidence, setup_s, imports, expected):
    known = facts()
    study = Study(spec=spec(), facts=replace(known, script=replace(known.script, imports=imports)))
    trial = reported(0, Config(), Failure(kind=kind, message="ended", evidence=evidence), Stage.BASELINE)
    trial = replace(trial, fidelity=replace(trial.fidelity, setup_s=setup_s, deadline_s=60.0))
    assert ended_by_budget(study, trial) is expected


def test_a_measured_run_was_ended_by_nothing():
    assert not ended_by_budget(Study(spec=spec()), reported(0, Config(), None, Stage.BASELINE))


@pytest.mark.parametrize(("seconds", "budget"), [(45.0, "6m"), (42.0, "6m"), (420.0, "56m"), (1.0, "1m")])
def test_the_budget_named_has_room_for_four_runs_of_twice_as_long(seconds, budget):
    assert budget_wanted(seconds) == budget
