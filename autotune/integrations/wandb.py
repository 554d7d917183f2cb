"""Trials in Weights & Biases: one run per search, a step per trial, the answer in the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.answer.pick import answer as answer_of
from autotune.integrations.figures import required, trial_figures
from autotune.model.config import config_text, value_text
from autotune.report.listener import Listener
from autotune.report.view.summary import headline
from autotune.text.redact import redact

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial


class WeightsAndBiases(Listener):
    """Logs to a project, by wandb; its own settings (``WANDB_MODE=offline``, ...) apply.

    Args:
        project: Name of the project.

    Raises:
        UsageError: wandb is not installed.
    """

    def __init__(self, project: str) -> None:
        self._package = required("wandb", "wandb")
        self._project = project
        self._run: Any = None

    def study_began(self, study: Study) -> None:
        spec = study.spec
        config = {"script": spec.title, "budget_s": spec.budget.seconds, "study": spec.study_id}
        self._run = self._package.init(
            project=self._project, name=spec.label, job_type="autotune", config=config
        )

    def trial_ended(self, study: Study, trial: Trial) -> None:
        if self._run is None:
            return
        row: dict[str, Any] = {"trial": trial.number, "stage": trial.stage.value}
        row["config"] = redact(config_text(trial.config), free=True)
        row |= {f"knob/{knob}": redact(value_text(value), free=True) for knob, value in trial.config.items()}
        if trial.failure is not None:
            row["failure"] = trial.failure.kind.words
        self._run.log(row | trial_figures(study, trial), step=trial.number)

    def study_ended(self, study: Study) -> None:
        if self._run is None:
            return
        answer = answer_of(study) if any(trial.measurement for trial in study.baseline) else None
        self._run.summary["answer"] = headline(study, answer, interval=True)
        if answer is not None and answer.is_better:
            self._run.summary["speedup"] = answer.best.speedup.value
            self._run.summary["best_config"] = redact(config_text(answer.best.config), free=True)
        self._run.finish()
        self._run = None
