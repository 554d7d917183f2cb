"""MLflow recorder: one run per study, with one child run per trial.

Decisions never depend on MLflow; the journal holds everything. Every operation can be repeated: runs are
found by their tags, times come from the journal, and parameters are written once. The study's own run, with
the curve of the best so far, is written at the start and at the end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.answer.advice import advice_of, advice_text
from autotune.compare.disturbances import busy_notes
from autotune.errors import TrackerUnavailable
from autotune.model.trial import Trial, TrialState
from autotune.model.wire import to_wire
from autotune.report.html.page import report_html
from autotune.report.mlflow import artifacts as files
from autotune.report.mlflow import run_content as record
from autotune.report.mlflow.connection import TAG_CHARACTERS, Connection
from autotune.report.mlflow.experiment import Experiment
from autotune.report.mlflow.store import Refused, absolute_uri, border
from autotune.report.mlflow.trial_runs import TrialRuns
from autotune.report.text import study_notes
from autotune.report.view import bottleneck_text, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

__all__ = ["MlflowSink", "Refused", "absolute_uri"]

_SCHEMA = "2"


class MlflowSink:
    """Writes one study into one MLflow store.

    Not thread-safe: used from the sending thread. `open` is slow (import, and about seven seconds for the
    first migration of a new SQLite store). The first `send` calls it if needed.

    Args:
        tracking_uri: Explicit address; MLflow's default is never used.
        experiment: Name of the experiment; empty for ``autotune/<script stem>``.
        own: Database of the default store, which is kept private and replaced if it is broken; None for a
            store of the user.
        clean: Removes secrets from every text before it is sent, except the report, which contains none.
        files: Function that returns further artifacts of a study by destination, such as profiles; sent
            unchanged.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str = "",
        *,
        own: Path | None = None,
        clean: Callable[[str], str] = str,
        files: Callable[[Study], Mapping[str, Path]] | None = None,
    ) -> None:
        self.tracking_uri = absolute_uri(tracking_uri, str(Path.cwd()))
        self._connection = Connection(self.tracking_uri, own=own, clean=clean)
        self._experiment = Experiment(self._connection, experiment)
        self._trials = TrialRuns(self._connection, self._experiment)
        self._files = files
        self._run = self._run_name = ""
        """The study's own run."""

    def open(self) -> None:
        """Import MLflow and check that the store responds.

        Raises:
            TrackerUnavailable: The store does not respond.
        """
        self._connection.open()

    def send(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None = None) -> None:
        """Carry out one operation; repeats have no effect.

        Args:
            op: ``study_began``, ``trial_ended`` (with ``number``) or ``study_ended``.
            payload: Data with ``wall_s``, the time of the event; ``best_yaml`` with ``study_ended``.
            study: Current study.
            answer: Current answer; None without one.

        Raises:
            Refused: MLflow rejects this record.
            TrackerUnavailable: MLflow cannot be reached.
        """
        self.open()
        try:
            with border(self.tracking_uri):
                self._carry_out(op, payload, study, answer)
        except TrackerUnavailable:
            # A remembered object may have been deleted; the next try searches again.
            self._experiment.forget()
            self._trials.forget()
            self._run = self._run_name = ""
            raise

    def links(self) -> dict[str, str]:
        """Return addresses by name, the most useful first; a command if no server runs."""
        if not self._run:
            return {}
        if not self._connection.is_served:
            return {"answer": "autotune ui"}
        return {name: self._address(path) for name, path in self.paths().items()}

    def paths(self) -> dict[str, str]:
        """Return paths of the same pages below any server of this store, as `autotune ui` opens them."""
        if not self._run:
            return {}
        return {"answer": self._experiment.run_path(self._run), **self._experiment.view_paths()}

    def find(self, study: Study) -> dict[str, str]:
        """Return the paths of a study that was logged before, without writing.

        Raises:
            TrackerUnavailable: The store cannot be reached.
        """
        self.open()
        with border(self.tracking_uri):
            if not self._experiment.find(study):
                return {}
            found = self._experiment.runs(study, "study")
        self._run = found[0].info.run_id if found else ""
        return self.paths()

    def log_run(
        self,
        study: Study,
        *,
        role: str,
        name: str,
        metrics: Sequence[tuple[str, float | None, int]],
        tags: Mapping[str, str],
        artifacts: Mapping[str, str],
    ) -> str:
        """Write one childless run of a study without a search; a repeat replaces its contents.

        Args:
            study: Study of another command than `autotune search`.
            role: Kind of the run, for its tag; runs of searches have ``study`` and ``trial``.
            name: Name of the run.
            metrics: Name, value and step; missing and infinite values are left out.
            tags: Tags in addition to those by which the run is found.
            artifacts: Text by file name.

        Returns:
            The address of the run; without a server its path below any server.

        Raises:
            Refused: MLflow rejects this record.
            TrackerUnavailable: MLflow cannot be reached.
        """
        self.open()
        connection, client = self._connection, self._connection.client
        with border(self.tracking_uri):
            self._experiment.ensure(study)
            found = self._experiment.runs(study, role)
            began_ms = round(study.created * 1000)
            own = {
                **_identity(study, role),
                "autotune.label": study.spec.label,
                "autotune.script": record.script_id(study),
            }
            if found:
                run_id = str(found[0].info.run_id)
            else:
                made = client.create_run(
                    self._experiment.id,
                    start_time=began_ms,
                    tags=connection.texts(own),
                    run_name=connection.clean(name),
                )
                run_id = str(made.info.run_id)
            end_ms = began_ms + round(study.elapsed_s * 1000)
            points = [m for key, value, step in metrics for m in connection.metric(key, value, end_ms, step)]
            client.log_batch(run_id, metrics=points, tags=connection.tags({**own, **tags}), synchronous=True)
            for file, text in artifacts.items():
                client.log_text(run_id, text, file)
            connection.close_artifacts()
            client.set_terminated(run_id, status=record.study_status(study), end_time=end_ms)
        path = self._experiment.run_path(run_id)
        return self._address(path) if connection.is_served else path

    def _carry_out(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> None:
        if op == "study_began":
            self._study_began(study, answer)
        elif op == "trial_ended":
            self._trial_ended(payload, study)
        elif op == "study_ended":
            self._study_ended(payload, study, answer)

    def _address(self, path: str) -> str:
        return self._connection.clean(self.tracking_uri.rstrip("/")) + path

    # -- the three operations -----------------------------------------------------------------

    def _study_began(self, study: Study, answer: Answer | None) -> None:
        self._ensure_run(study, answer)
        self._connection.client.update_run(self._run, status="RUNNING")
        self._rename(summary.run_name(study, answer))
        self._experiment.write_study_view(study, answer)

    def _trial_ended(self, payload: Mapping[str, Any], study: Study) -> None:
        number = int(payload["number"])
        trial = next((t for t in study.trials if t.number == number and t.state is TrialState.FINISHED), None)
        if trial is None:
            message = f"trial {number} has no outcome in study {study.spec.study_id}"
            raise Refused(message)
        self._ensure_run(study, None)
        end_ms = round(float(payload["wall_s"]) * 1000)
        command = str(payload.get("command") or "")
        self._trials.write(study, trial, parent=self._run, end_ms=end_ms, command=command)

    def _study_ended(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> None:
        connection, client = self._connection, self._connection.client
        self._ensure_run(study, answer)
        end_ms = round(float(payload["wall_s"]) * 1000)
        self._experiment.write_study_view(study, answer)
        picks = summary.picks_of(answer)
        self._trials.mark(study, answer, picks, end_ms)
        self._write_params(study, answer)
        figures = record.study_figures(study, answer)
        metrics = [m for name, value in figures.items() for m in connection.metric(name, value, end_ms)]
        metrics += self._best_so_far(study)
        tags = connection.tags(self._tags(study, answer, picks))
        client.log_batch(self._run, metrics=metrics, tags=tags, synchronous=True)
        for name, text in self._artifacts(payload, study, answer).items():
            client.log_text(self._run, text, name)
        for name, path in (self._files(study) if self._files is not None else {}).items():
            client.log_artifact(self._run, str(path), name.rpartition("/")[0])
        self._trials.write_logs(study)
        connection.close_artifacts()
        self._rename(summary.run_name(study, answer))
        client.set_terminated(self._run, status=record.study_status(study), end_time=end_ms)
        best = ""
        if answer is not None and answer.is_better:
            best = self._trials.run_id(study, answer.best.trial)
        self._experiment.write_note(study, answer, run_id=self._run, best_run_id=best)

    def _best_so_far(self, study: Study) -> list[Any]:
        """Return the curve of the largest single-run ratio: its increases and its end."""
        curve: list[tuple[Trial, float]] = []
        for trial in study.finished():
            ratio = summary.speedup_of(study, trial)
            if ratio is not None and (not curve or ratio.value > curve[-1][1]):
                curve.append((trial, ratio.value))
        if curve and curve[-1][0].number < (last := study.finished()[-1]).number:
            curve.append((last, curve[-1][1]))
        began_ms = round(study.created * 1000)
        return [
            point
            for trial, best in curve
            for point in self._connection.metric(
                "best_so_far_speedup", best, began_ms + round(trial.finished_s * 1000), trial.number
            )
        ]

    # -- the study's run ----------------------------------------------------------------------

    def _ensure_run(self, study: Study, answer: Answer | None) -> None:
        self._experiment.ensure(study)
        if self._run:
            return
        found = self._experiment.runs(study, "study")
        if found:
            self._run, self._run_name = found[0].info.run_id, str(found[0].info.run_name)
            return
        name = self._connection.clean(summary.run_name(study, answer))
        tags = {
            **_identity(study, "study"),
            **self._tags(study, None, {}),
            **dict(tag.split("=", 1) for tag in study.spec.mlflow_tags),
        }
        if study.spec.mlflow_parent_run:
            tags["mlflow.parentRunId"] = study.spec.mlflow_parent_run
        run = self._connection.client.create_run(
            self._experiment.id,
            start_time=round(study.created * 1000),
            tags=self._connection.texts(tags),
            run_name=name,
        )
        self._run, self._run_name = run.info.run_id, name

    def _rename(self, name: str) -> None:
        name = self._connection.clean(name)
        if name != self._run_name:
            self._connection.client.update_run(self._run, name=name)
            self._run_name = name

    def _tags(
        self, study: Study, answer: Answer | None, picks: Mapping[int, Sequence[str]]
    ) -> dict[str, str]:
        links, held_back = self._trials.links(), _held_back(study, answer)
        text = self._connection.clean(study_notes.note(study, answer, links=links, held_back=held_back))
        more = self._view_links()
        if len(text) + len(more) > TAG_CHARACTERS:
            more = f"{more}\nContinued in the artifact `report.md`.\n"
            text = text[: TAG_CHARACTERS - len(more)].rsplit("\n", 1)[0] + "\n"
        text += more
        tags = {
            "mlflow.note.content": text,
            "autotune.status": summary.status(study, answer),
            "autotune.answer": summary.headline(study, answer, interval=True),
            "autotune.label": study.spec.label,
            "autotune.script": record.script_id(study),
            "mlflow.source.name": summary.user_command(study),
            "mlflow.source.type": "LOCAL",
        }
        if study.spec.git_commit:
            tags["mlflow.source.git.commit"] = study.spec.git_commit
        if study.stopped:
            tags["autotune.stopped"] = study.stopped
        if busy := busy_notes(study):
            tags["autotune.busy"] = "\n".join(busy)
        if answer is not None:
            tags |= bottleneck_text.why_tags(study, answer)
            if study.stopped:
                tags["autotune.outcome"] = answer.outcome.value
                tags["autotune.resume"] = answer.resume
        # A long note may be cut before the hints.
        if hints := advice_of(study):
            tags["autotune.advice"] = "\n".join(map(advice_text, hints))
        if answer is not None and answer.is_better:
            tags["autotune.apply"] = summary.apply_command(study)
        for number, names in picks.items():
            if run_id := self._trials.run_id(study, number):
                tags.update({f"autotune.{name}_run_id": run_id for name in names})
        return tags

    def _view_links(self) -> str:
        shown = {"table": "every trial in a table", "charts": "charts", "searches": "all searches"}
        links = [f"[{shown[name]}]({path[1:]})" for name, path in self.paths().items() if name in shown]
        return f"\nIn MLflow: {', '.join(links)}.\n" if links else ""

    def _write_params(self, study: Study, answer: Answer | None) -> None:
        connection = self._connection
        new = connection.values(record.study_params(study, answer))
        known = connection.client.get_run(self._run).data.params
        # MLflow never changes a parameter, but a resumed search may have another answer.
        newer = {f"autotune.newer.{k}": v for k, v in new.items() if known.get(k, v) != v}
        fresh = connection.params({k: v for k, v in new.items() if k not in known})
        if fresh or newer:
            tags = connection.tags(newer)
            connection.client.log_batch(self._run, params=fresh, tags=tags, synchronous=True)

    def _artifacts(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> dict[str, str]:
        texts = {
            "report.md": study_notes.note(study, answer, held_back=_held_back(study, answer)),
            "trials.json": files.trials_json(study),
        }
        if answer is not None:
            texts["front.json"] = json.dumps(to_wire(answer.front), indent=1)
            texts["front.csv"] = files.front_csv(study, answer)
            texts["pareto.svg"] = files.pareto_svg(study, answer)
        if best_yaml := payload.get("best_yaml"):
            texts["best.yaml"] = str(best_yaml)
        texts |= files.failed_logs(study)
        # The page consists of cleaned texts. It is not cleaned as a whole: a pattern for texts could take
        # markup for a secret.
        page = {"report.html": report_html(study, answer)}
        return page | {name: self._connection.clean(text) for name, text in texts.items()}


def _identity(study: Study, role: str) -> dict[str, str]:
    """Return the tags by which a run of a study is found."""
    return {
        "autotune.role": role,
        "autotune.study_id": study.spec.study_id,
        "autotune.schema": _SCHEMA,
    }


def _held_back(study: Study, answer: Answer | None) -> list[str]:
    return [] if answer is None else bottleneck_text.why_lines(study, answer)
