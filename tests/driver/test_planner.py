"""What the first run of the script decides for all that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_fakes import facts, measurement, spec

from autotune.driver.loop.planner import Planner
from autotune.knobs.registry import builtin
from autotune.model.config import Config
from autotune.model.facts import ScriptFlag
from autotune.model.study import Study
from autotune.model.trial import Assignment, Fidelity, Stage, Trial, TrialState

FIDELITY = Fidelity(
    min_window_s=1.0, max_window_s=2.0, min_steps=5, target_width=0.05, setup_s=60.0, deadline_s=90.0
)


@pytest.mark.parametrize(
    ("reported", "decided"),
    [({}, None), ({"evaluation_counts": 1.0}, True), ({"evaluation_counts": 0.0}, False)],
)
def test_whether_evaluation_counts_is_decided_by_the_first_baseline(
    reported: dict[str, float], decided: bool | None
) -> None:
    first = Trial(
        number=0,
        config=Config(),
        stage=Stage.BASELINE,
        fidelity=FIDELITY,
        state=TrialState.FINISHED,
        outcome=replace(measurement(), extra=reported),
    )
    study = Study(spec=spec(), facts=facts()).with_trial(first)
    planner = Planner(knobs=builtin(), environ={}, memory_limit_bytes=0)
    second = Trial(number=1, config=Config(), stage=Stage.BASELINE, fidelity=FIDELITY)
    planned = planner.assign(study, second)
    assert isinstance(planned, Assignment)
    assert planned.segments[0].fidelity.evaluation_counts is decided


@pytest.mark.parametrize(("args", "message"), [((), 32), (("--batch-size", "8"), 8)])
def test_a_process_receives_the_value_of_the_scripts_own_batch_option(
    args: tuple[str, ...], message: int
) -> None:
    option = ScriptFlag(names=("-b", "--batch-size"), dest="batch_size", kind="int", default=32)
    known = facts()
    known = replace(known, script=replace(known.script, flags=(option,)))
    study = Study(spec=replace(spec(), args=args), facts=known)
    planner = Planner(knobs=builtin(), environ={}, memory_limit_bytes=0)
    planned = planner.assign(study, Trial(number=0, config=Config(), stage=Stage.BASELINE, fidelity=FIDELITY))
    assert isinstance(planned, Assignment)
    assert planned.launch.batch == message
