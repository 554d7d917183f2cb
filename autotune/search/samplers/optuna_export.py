"""A study as an Optuna study, for optuna-dashboard and for analysis by Optuna's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.model.config import config_text, value_text
from autotune.search.samplers.optuna_sampler import optuna_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.model.study import Study
    from autotune.model.trial import Trial

UNCHANGED: Final = "unchanged"
"""Choice of a knob that a config leaves alone, if the script's own value is unknown."""


def write_optuna(study: Study, path: Path) -> int:
    """Write the finished trials of a study into a new SQLite file for Optuna.

    The objective is the throughput in samples/s, maximized. A knob is a categorical parameter of texts.
    Stage, configuration, peak memory and the kind of a failure are user attributes.

    Args:
        study: Study to export.
        path: File to create; the Optuna study has the name of the autotune study.

    Returns:
        Number of trials written.

    Raises:
        FileExistsError: The file exists.
    """
    if path.exists():
        raise FileExistsError(path)
    optuna = optuna_module()
    storage = optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line for each study and trial otherwise
    made = optuna.create_study(storage=storage, study_name=study.spec.label, direction="maximize")
    own, trials = _own(study), study.finished()
    knobs = sorted({knob for trial in trials for knob in trial.config})
    choices = {knob: _choices(knob, own, trials) for knob in knobs}
    for trial in trials:
        made.add_trial(_trial(optuna, trial, own, choices))
    return len(trials)


def _own(study: Study) -> dict[str, str]:
    """Return the script's own value of each knob as text, as far as it was read."""
    dimensions = study.space.dimensions if study.space is not None else {}
    return {
        knob: value_text(dimension.own) for knob, dimension in dimensions.items() if dimension.own is not None
    }


def _choices(knob: str, own: dict[str, str], trials: Sequence[Trial]) -> tuple[str, ...]:
    tried = {value_text(trial.config[knob]) for trial in trials if knob in trial.config}
    return tuple(sorted(tried | {own.get(knob, UNCHANGED)}))


def _trial(optuna: Any, trial: Trial, own: dict[str, str], choices: dict[str, tuple[str, ...]]) -> Any:
    measured, failure = trial.measurement, trial.failure
    attributes: dict[str, Any] = {"stage": trial.stage.value, "config": config_text(trial.config)}
    if failure is not None:
        attributes["failure"] = failure.kind.label
    if measured is not None and measured.memory.peak_bytes is not None:
        attributes["peak_memory_gib"] = measured.memory.peak_bytes / 2**30
    state = optuna.trial.TrialState.COMPLETE if measured is not None else optuna.trial.TrialState.FAIL
    return optuna.trial.create_trial(
        state=state,
        value=None if measured is None else measured.throughput.value,
        params={
            knob: value_text(trial.config[knob]) if knob in trial.config else own.get(knob, UNCHANGED)
            for knob in choices
        },
        distributions={knob: optuna.distributions.CategoricalDistribution(c) for knob, c in choices.items()},
        user_attrs=attributes,
    )
