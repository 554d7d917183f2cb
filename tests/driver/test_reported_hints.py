"""What a search says and plans where the script reports its own steps."""

from types import SimpleNamespace

import pytest
from study_fakes import spec, study

from autotune.driver.exit_status import _hint_for
from autotune.model.change import Env, Keyword
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec, SpaceRequest
from autotune.model.trial import Failure, FailureKind
from autotune.search.costs import Costs


def hint(kind, steps, *imports, **evidence):
    study = SimpleNamespace(facts=SimpleNamespace(script=SimpleNamespace(imports=imports, hazards=())))
    failure = Failure(kind=kind, message="", evidence={"steps": steps, **evidence})
    return _hint_for(study, SimpleNamespace(failure=failure))


@pytest.mark.parametrize("kind", [FailureKind.NO_METRIC, FailureKind.TIMEOUT_PROGRESS])
def test_a_script_of_another_library_without_a_step_is_reported_with_the_call(kind):
    assert hint(kind, 0, "argparse", "jax", "tensorflow") == (
        "with jax and tensorflow the script must report each step itself: "
        "autotune.step(samples=..., loss=...)"
    )
    assert "autotune.step" not in hint(kind, 0, "torch")
    assert "autotune.step" not in hint(kind, 7, "jax")


def test_a_process_that_knows_why_it_made_no_step_needs_no_other_hint():
    assert hint(FailureKind.NO_METRIC, 0, "torch", error="", phase="setup") == ""
    assert "more epochs or steps" in hint(FailureKind.NO_METRIC, 0, "torch")


def test_a_crash_before_the_first_step_is_none_of_that():
    assert "by itself" in hint(FailureKind.CRASH_EXIT, 0, "jax")


@pytest.mark.parametrize(
    ("spelling", "seconds"), [(Keyword("autotune.sdk.value", "jit_compile"), 0.0), (Env("JIT_COMPILE"), 45.0)]
)
def test_what_the_script_compiles_by_its_own_value_is_not_planned_as_a_compile_of_torch(spelling, seconds):
    declared = (
        DeclaredSpec(name="jit_compile", effect=Effect.NUMERIC, values=(False, True), spelling=spelling),
    )
    made = study(spec=spec(space=SpaceRequest(name="default", declared=declared)), trials=())
    assert Costs.of(made).cold_compile(Config({"jit_compile": True})) == seconds
