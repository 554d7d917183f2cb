"""A study in Optuna's own storage: every trial, its knobs, its throughput."""

import optuna
import pytest
from study_fakes import study

from autotune.search.samplers.optuna_export import UNCHANGED, write_optuna


@pytest.fixture
def loaded(tmp_path):
    made = study()
    path = tmp_path / "study.db"
    assert write_optuna(made, path) == 6
    return made, optuna.load_study(study_name=made.spec.label, storage=f"sqlite:///{path}")


def test_every_finished_trial_is_there_with_its_throughput_or_as_failed(loaded):
    made, found = loaded
    states = [trial.state.name for trial in found.trials]
    assert states == ["FAIL" if t.failure is not None else "COMPLETE" for t in made.trials]
    assert found.best_trial.number == 3
    assert found.best_value == pytest.approx(made.trials[3].measurement.throughput.value)
    assert found.trials[4].user_attrs["failure"] == "oom_host"


def test_a_knob_is_the_same_parameter_in_every_trial(loaded):
    _made, found = loaded
    names = {frozenset(trial.params) for trial in found.trials}
    assert len(names) == 1
    assert found.trials[3].params["precision"] == "bf16"
    assert found.trials[0].params["threads"] in (UNCHANGED, "1")
    assert set(optuna.importance.get_param_importances(found)) <= set(found.trials[0].params)


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "study.db"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_optuna(study(), path)
    assert path.read_text() == "mine"
