"""The message of a search without a result."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import no_answer, reported, spec, study

from autotune.answer.answer import SearchOutcome
from autotune.driver.exit_status import exit_code, why_nothing
from autotune.errors import AutotuneError, BackendError, DiskFull, ScriptError, UsageError
from autotune.launch.runner import NOT_BEGUN, REMEDY
from autotune.launch.workspace.isolation_failures import BOTH_MODES
from autotune.model.config import Config
from autotune.model.facts import Facts, ScriptFacts
from autotune.model.study import Budget, Study
from autotune.model.trial import Failure, FailureKind, Stage
from autotune.testing.knobs import CPU_HOST as HOST


def ended(failure: Failure) -> AutotuneError:
    return why_nothing(Study(spec=spec(), trials=(reported(0, Config(), failure, Stage.BASELINE),)))


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


def test_a_script_that_fails_by_itself_is_reported_so() -> None:
    error = ended(Failure(kind=FailureKind.CRASH_EXIT, message="exit code 3"))
    assert type(error) is ScriptError
    assert "fails unchanged: exit code 3" in error.message


def test_a_script_that_fails_differently_in_two_modes_of_isolation_is_not_blamed() -> None:
    evidence: dict[str, str | int | float] = {BOTH_MODES: "exit code 1: [Errno 18]"}
    error = ended(Failure(kind=FailureKind.CRASH_EXIT, message="exit code 3", evidence=evidence))
    assert "unchanged" not in error.message
    assert "an overlay (exit code 1: [Errno 18]), nor in redirect mode: exit code 3" in error.message
    assert "run the script by itself first" in error.hint


def test_a_run_that_never_began_blames_what_the_machine_lacks_and_not_the_script() -> None:
    lacks = "the trial could not be set up: too many files are open: this process may open 8"
    evidence: dict[str, str | int | float] = {NOT_BEGUN: 1, REMEDY: "allow more: ulimit -n 4096"}
    error = ended(Failure(kind=FailureKind.INFRA_LOST, message=lacks, evidence=evidence))
    assert type(error) is BackendError
    assert error.message == lacks
    assert error.hint == f"allow more: ulimit -n 4096; then: autotune resume {spec().label}"
    full = ended(Failure(kind=FailureKind.DISK, message="12 bytes are free in /x", evidence={NOT_BEGUN: 1}))
    assert (type(full), full.exit_code) == (DiskFull, 6)


def test_a_script_that_reads_a_pipe_is_reported_as_not_repeatable() -> None:
    failure = Failure(
        kind=FailureKind.CRASH_EXIT,
        message="exit code 1: nothing to learn from",
        evidence={"steps": 0, "log_tail": "nothing to learn from"},
    )
    known = Facts(host=HOST, script=ScriptFacts(path="train.py", hazards=("stdin",)))
    trial = reported(0, Config(), failure, Stage.BASELINE)
    error = why_nothing(Study(spec=spec(), facts=known, trials=(trial,)))
    assert error.message.startswith("train.py could not be measured: exit code 1: nothing to learn from")
    assert "standard input, which cannot be repeated" in error.hint
    assert "< data.txt" in error.hint
    redirected = why_nothing(Study(spec=spec(stdin="/data/corpus.txt"), facts=known, trials=(trial,)))
    assert "run the script by itself first" in redirected.hint
    later = replace(failure, evidence={"steps": 9})
    trained = Study(spec=spec(), facts=known, trials=(reported(0, Config(), later, Stage.BASELINE),))
    assert "standard input" not in why_nothing(trained).hint


def test_a_script_with_too_few_steps_has_a_remedy() -> None:
    error = ended(Failure(kind=FailureKind.WARMUP_SHORT, message="too short"))
    assert "more epochs or steps" in error.hint


@pytest.mark.parametrize(
    ("kind", "evidence"),
    [(FailureKind.TIMEOUT_TOTAL, {"steps": 0}), (FailureKind.WARMUP_SHORT, {"deadline_s": 30.0})],
)
def test_a_budget_that_ended_the_first_run_is_a_usage_error_with_the_number_to_use(kind, evidence) -> None:
    failure = Failure(kind=kind, message="not done after 45 s", evidence=evidence)
    first = replace(reported(0, Config(), failure, Stage.BASELINE), seconds=45.0)
    error = why_nothing(Study(spec=spec(budget=Budget(seconds=60.0)), trials=(first,)))
    assert (type(error), error.exit_code) == (UsageError, 2)
    assert error.message == (
        "a budget of 60 s ended before train.py was measured once; one run takes more than 45 s here"
    )
    # Four runs of twice as long.
    assert error.hint == "give more time: --budget 6m"


def test_a_budget_that_ended_before_the_first_run_names_a_longer_one() -> None:
    error = why_nothing(Study(spec=spec(budget=Budget(seconds=60.0)), stopped="finished"))
    assert (error.exit_code, error.hint) == (2, "give more time: --budget 8m")
    assert "fails" not in error.message


@pytest.mark.parametrize(
    ("outcome", "stopped", "code"),
    [
        (SearchOutcome.FASTER, "finished", 0),
        (SearchOutcome.NOTHING_FASTER, "finished", 1),
        (SearchOutcome.INCONCLUSIVE, "finished", 8),
        (SearchOutcome.INCONCLUSIVE, "interrupted", 130),
        (SearchOutcome.INCONCLUSIVE, "signal", 75),
        (SearchOutcome.INCONCLUSIVE, "script", 2),
    ],
)
def test_each_outcome_has_its_exit_code_and_a_stopped_search_keeps_its_own(outcome, stopped, code) -> None:
    found = replace(no_answer(), outcome=outcome, is_better=outcome is SearchOutcome.FASTER)
    assert exit_code(study(stopped=stopped), found) == code
