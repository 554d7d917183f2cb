"""Runs of a study's trials, below the study's own run.

A trial costs three calls while others may be measured: create its run, fill it by one batch, end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.model.config import in_order
from autotune.report.mlflow import run_content as record
from autotune.report.view import summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.model.trial import Trial
    from autotune.report.mlflow.connection import Connection
    from autotune.report.mlflow.experiment import Experiment


@dataclass(slots=True)
class _TrialRun:
    """State of a trial's run in MLflow."""

    run_id: str
    name: str
    marks: str = ""
    """Pick and place on the front, as last written."""


class TrialRuns:
    """The runs of the trials.

    Args:
        connection: Client of the store.
        experiment: Holds the runs.
    """

    def __init__(self, connection: Connection, experiment: Experiment) -> None:
        self._connection = connection
        self._experiment = experiment
        self._runs: dict[str, _TrialRun] | None = None
        """By the uid of the trial."""

    def forget(self) -> None:
        """Forget the runs, which may have been deleted; the next call searches again."""
        self._runs = None

    def links(self) -> dict[int, str]:
        """Return links to the runs by the number of their trial."""
        known = self._runs or {}
        return {
            int(uid.rsplit("/t", 1)[1].split("a")[0]): self._experiment.run_path(run.run_id)[1:]
            for uid, run in known.items()
        }

    def run_id(self, study: Study, number: int) -> str:
        """Return the run of a trial; empty without one."""
        trial = next((t for t in study.finished() if t.number == number), None)
        run = self._known(study).get(record.trial_uid(study, trial)) if trial is not None else None
        return run.run_id if run is not None else ""

    def write(self, study: Study, trial: Trial, *, parent: str, end_ms: int, command: str) -> None:
        """Write the run of a trial that has ended.

        Args:
            study: Study of the trial.
            trial: The trial.
            parent: Run of the study.
            end_ms: When it ended.
            command: The trial's command, for its tags.
        """
        client, runs = self._connection.client, self._known(study)
        uid = record.trial_uid(study, trial)
        knobs = record.resolved(study, trial.config)
        params = self._connection.values({k: record.param_text(v) for k, v in in_order(knobs)})
        start_ms = end_ms - round(trial.seconds * 1000)
        known = runs.get(uid)
        if known is None:
            name = self._connection.clean(summary.trial_name(trial, knobs=knobs))
            tags = record.trial_tags(study, trial, command)
            tags["mlflow.parentRunId"] = parent
            run = client.create_run(
                self._experiment.id,
                start_time=start_ms,
                tags=self._connection.texts(tags),
                run_name=name,
            )
            known = runs[uid] = _TrialRun(run.info.run_id, name)
        else:
            # A run that was written partly, or is sent again: add only what is missing.
            there = client.get_run(known.run_id).data.params
            params = {k: v for k, v in params.items() if k not in there}
        client.log_batch(
            known.run_id,
            metrics=self._metrics(study, trial, start_ms, end_ms),
            params=self._connection.params(params),
            synchronous=True,
        )
        client.set_terminated(known.run_id, status=record.trial_status(trial), end_time=end_ms)

    def write_logs(self, study: Study) -> None:
        """Write the last lines of failed trials."""
        # Not with the trial: its run would need a fourth call while the next one is measured.
        for trial in study.finished():
            if trial.failure is not None and (tail := record.log_tail(trial)):
                run_id = self.run_id(study, trial.number)
                if run_id:
                    self._connection.client.log_text(run_id, self._connection.clean(tail), "log_tail.txt")

    def mark(
        self, study: Study, answer: Answer | None, picks: Mapping[int, Sequence[str]], end_ms: int
    ) -> None:
        """Mark the trials of the answer.

        Args:
            study: The study.
            answer: Its answer.
            picks: Names of the picks by the number of their trial.
            end_ms: When the study ended.
        """
        connection = self._connection
        front = {m.trial for m in answer.front} if answer is not None else set[int]()
        confirmed = record.confirmed(study, answer)
        runs = self._known(study)
        for trial in study.finished():
            run = runs.get(record.trial_uid(study, trial))
            if run is None:
                continue
            mine = list(picks.get(trial.number, ()))
            knobs = record.resolved(study, trial.config)
            name = connection.clean(summary.trial_name(trial, picks=mine, knobs=knobs))
            if name != run.name:
                connection.client.update_run(run.run_id, name=name)
                run.name = name
            metrics: list[Any] = []
            tags: dict[str, str] = {}
            marks = f"{','.join(mine)}|{trial.number in front}"
            if marks != run.marks and (mine or trial.number in front or run.marks):
                tags = {
                    "autotune.pick": ",".join(mine) or "none",
                    "autotune.pareto": str(trial.number in front).lower(),
                }
                run.marks = marks
            if (seen := confirmed.get(trial.number)) is not None:
                figures = record.speedup_figures(seen.speedup)
                metrics = [m for key, value in figures.items() for m in connection.metric(key, value, end_ms)]
                tags |= {"autotune.loss": seen.loss} if seen.loss else {}
            if metrics or tags:
                connection.client.log_batch(
                    run.run_id, metrics=metrics, tags=connection.tags(tags), synchronous=True
                )

    def _metrics(self, study: Study, trial: Trial, start_ms: int, end_ms: int) -> list[Any]:
        metric = self._connection.metric
        figures = record.trial_figures(study, trial)
        metrics = [m for name, value in figures.items() for m in metric(name, value, end_ms)]
        for loss, t_s, samples in record.loss_trace(trial):
            metrics += metric("loss", loss, start_ms + round(1000 * t_s), samples)
        return metrics

    def _known(self, study: Study) -> dict[str, _TrialRun]:
        if self._runs is None:
            self._runs = {}
            for run in self._experiment.runs(study, "trial"):
                tags = run.data.tags
                marks = (
                    f"{tags['autotune.pick']}|{tags.get('autotune.pareto')}"
                    if "autotune.pick" in tags
                    else ""
                )
                found = _TrialRun(run.info.run_id, str(run.info.run_name), marks)
                self._runs.setdefault(tags.get("autotune.trial_uid", ""), found)
        return self._runs
