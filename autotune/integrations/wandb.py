"""Trials in Weights & Biases: one run per search, a step per trial, the answer in the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.answer.pick import answer as answer_of
from autotune.integrations.figures import required, trial_figures
from autotune.model.config import config_text, value_text
from autotune.report.listener import Listener
from autotune.report.view.summary import headline
from autotune.text.redact import redact

if TYPE_CHECKING:
    from autotune.model.study import Study
    from autotune.model.trial import Trial

_SETTINGS: Final = {
    # wandb would send the command line and the uncommitted changes of the repository, secrets included.
    "x_disable_meta": True,
    "disable_git": True,
    "disable_code": True,
    # It would replace the streams of the terminal view.
    "console": "off",
    # It would sample the machine while trials are measured.
    "x_disable_stats": True,
}


class WeightsAndBiases(Listener):
    """Logs to a project, by wandb; its own settings (``WANDB_MODE=offline``, ...) apply.

    It receives trials and the answer only: no source, command line, console output or machine metrics.

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
            project=self._project,
            id=spec.study_id,
            resume="allow",
            name=spec.label,
            job_type="autotune",
            config=config,
            settings=self._package.Settings(**_SETTINGS),
        )
        # Without this the summary shows the last trial's values beside the answer.
        self._run.define_metric("*", summary="none")

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
