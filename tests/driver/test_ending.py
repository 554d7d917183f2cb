"""What is said where a search has nothing to say."""

from __future__ import annotations

import pytest
from study_fakes import spec, told

from autotune.core.config import Config
from autotune.core.study import Study
from autotune.core.trial import Failure, FailureKind, Stage
from autotune.driver.ending import why_nothing
from autotune.errors import AutotuneError, BackendError, ScriptError


def ended(failure: Failure) -> AutotuneError:
    return why_nothing(Study(spec=spec(), trials=(told(0, Config(), failure, Stage.BASELINE),)))


@pytest.mark.parametrize(
    ("kind", "help_"),
    [(FailureKind.CONTENDED, "CUDA_VISIBLE_DEVICES"), (FailureKind.THROTTLED, "PERFORMANCE")],
)
def test_what_held_the_accelerator_is_not_the_scripts_fault(kind: FailureKind, help_: str) -> None:
    error = ended(Failure(kind=kind, message="another process used the accelerator in 9 of 12 samples"))
    assert type(error) is BackendError
    assert error.message == (
        "train.py could not be measured: another process used the accelerator in 9 of 12 samples"
    )
    assert help_ in error.hint


def test_a_script_that_fails_by_itself_is_told_so() -> None:
    error = ended(Failure(kind=FailureKind.CRASH_EXIT, message="exit code 3"))
    assert type(error) is ScriptError
    assert "fails without any change of ours: exit code 3" in error.message


@pytest.mark.parametrize(
    ("evidence", "help_"), [({}, "more epochs or steps"), ({"deadline_s": 30.0}, "a longer --budget")]
)
def test_too_few_steps_have_a_remedy_by_what_ended_them(evidence: dict[str, float], help_: str) -> None:
    error = ended(Failure(kind=FailureKind.WARMUP_SHORT, message="too short", evidence=evidence))
    assert help_ in error.hint
