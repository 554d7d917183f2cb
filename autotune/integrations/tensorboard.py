"""Trials in TensorBoard: a scalar per figure over the trial's number, and the HParams page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.integrations.figures import required, trial_figures
from autotune.model.config import config_text, value_text
from autotune.report.listener import Listener

if TYPE_CHECKING:
    import os

    from autotune.model.study import Study
    from autotune.model.trial import Trial


class TensorBoard(Listener):
    """Writes event files, by tensorboardX.

    Args:
        log_dir: Folder that `tensorboard --logdir` opens; each study gets a folder of its own in it.

    Raises:
        UsageError: tensorboardX is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._package = required("tensorboardX", "tensorboardX")
        self._log_dir = log_dir
        self._writer: Any = None

    def study_began(self, study: Study) -> None:
        self._writer = self._package.SummaryWriter(f"{self._log_dir}/{study.spec.label}")

    def trial_ended(self, study: Study, trial: Trial) -> None:
        if self._writer is None:
            return
        figures = trial_figures(study, trial)
        for name, value in figures.items():
            self._writer.add_scalar(f"trial/{name}", value, trial.number)
        if figures:
            knobs = {knob: value_text(value) for knob, value in trial.config.items()}
            metrics = {f"hparam/{name}": value for name, value in figures.items()}
            self._writer.add_hparams(knobs, metrics, name=f"t{trial.number:04d}")
        else:
            failure = trial.failure.kind.words if trial.failure is not None else trial.state.value
            self._writer.add_text("failed", f"{config_text(trial.config)}: {failure}", trial.number)

    def study_ended(self, study: Study) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
