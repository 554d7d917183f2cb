"""Experiment that holds the runs of a study: its note, and the saved views of its table.

Texts are laid out for MLflow's UI 3.17 in its "Model training" mode, which the links request by
``workflowType=machine_learning``.
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING, Any

from autotune.report.mlflow import run_content as record
from autotune.report.mlflow import saved_views
from autotune.report.mlflow.connection import TAG_CHARACTERS
from autotune.report.mlflow.local_store import artifact_folder
from autotune.report.text import study_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.answer.answer import Answer
    from autotune.model.study import Study
    from autotune.report.mlflow.connection import Connection

log = logging.getLogger(__name__)

_ML = "workflowType=machine_learning"


class Experiment:
    """One experiment, which is created if needed.

    Args:
        connection: Client of the store.
        name: Its name; empty for ``autotune/<script stem>``.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self.id = ""
        self._views: set[str] = set()
        self._view_id = self._searches_id = ""

    def forget(self) -> None:
        """Forget the experiment, which may have been deleted; the next call searches again."""
        self.id = ""

    def ensure(self, study: Study) -> None:
        """Find or create the experiment."""
        if self.id:
            return
        client = self._connection.client
        if study.spec.mlflow_parent_run:
            # MLflow nests runs of one experiment only.
            self.id = str(client.get_run(study.spec.mlflow_parent_run).info.experiment_id)
            return
        name = self._name or f"autotune/{study.spec.stem}"
        found = client.get_experiment_by_name(name)
        if found is None:
            found = self._create(name)
        elif found.lifecycle_stage != "active":
            client.restore_experiment(found.experiment_id)
        self.id = str(found.experiment_id)

    def find(self, study: Study) -> bool:
        """Find the experiment and its views without writing; return whether it exists."""
        client = self._connection.client
        if study.spec.mlflow_parent_run:
            run = client.get_run(study.spec.mlflow_parent_run)
            found = client.get_experiment(run.info.experiment_id)
        else:
            found = client.get_experiment_by_name(self._name or f"autotune/{study.spec.stem}")
        if found is None:
            return False
        self.id = str(found.experiment_id)
        self._name_views(study)
        kept = {key.removeprefix(saved_views.TAG) for key in found.tags if key.startswith(saved_views.TAG)}
        # The server may have another version than the one for which the pages were written.
        self._views = kept if kept and self._reads_views() else set()
        return True

    def runs(self, study: Study, role: str) -> list[Any]:
        """Return the runs of a study with a role (``study``, ``trial`` or that of another command)."""
        condition = f"tags.`autotune.study_id` = '{study.spec.study_id}' and tags.`autotune.role` = '{role}'"
        return self._connection.runs(self.id, condition)

    def run_path(self, run_id: str) -> str:
        """Return the path of a run below any server of the store."""
        return f"/#/experiments/{self.id}/runs/{run_id}?{_ML}"

    def view_paths(self) -> dict[str, str]:
        """Return the paths of its views by name, without missing ones, whose links end on a bare page."""
        runs = f"/#/experiments/{self.id}/runs"
        paths: dict[str, str] = {}
        if self._view_id in self._views:
            paths["table"] = f"{runs}?{_ML}&viewStateShareKey={self._view_id}"
            paths["charts"] = f"{paths['table']}&compareRunsMode=CHART"
        if self._searches_id in self._views:
            paths["searches"] = f"{runs}?{_ML}&viewStateShareKey={self._searches_id}"
        return paths

    def write_study_view(self, study: Study, answer: Answer | None) -> None:
        """Write the table of one study's trials."""
        title = f"autotune {study.spec.label}"
        self._write_view(
            saved_views.view_id(study), title, study, lambda: saved_views.view_state(study, answer)
        )

    def write_note(self, study: Study, answer: Answer | None, *, run_id: str, best_run_id: str) -> None:
        """Write the note on the experiment's page: the newest answer, and the searches of its script.

        Args:
            study: The study that has ended.
            answer: Its answer.
            run_id: Its run.
            best_run_id: Run of the best trial; empty without one.
        """
        client = self._connection.client
        searches = self._searches()
        newest = max(searches, key=lambda one: one.started_ms, default=None)
        mine = [one for one in searches if one.script == record.script_id(study)]
        if all(one.started_ms <= round(study.created * 1000) for one in searches):
            note = study_notes.experiment_note(study, answer, run_link=self.run_path(run_id))
            text = self._connection.clean(note)
            if answer is not None and answer.is_better:
                client.set_experiment_tag(self.id, "autotune.best_run_id", best_run_id or run_id)
        else:
            # A late message does not replace the answer of a newer search.
            tags = client.get_experiment(self.id).tags
            text = tags.get("mlflow.note.content", "").split(record.SEARCHES)[0].rstrip("\n") + "\n"
        # The answer comes first, whatever space is left for the list.
        text = text[:TAG_CHARACTERS]
        # The list below the newest answer is that of its script, whichever search writes it.
        alike = [one for one in searches if newest is not None and one.script == newest.script]
        listed = self._connection.clean(record.searches_note(alike, TAG_CHARACTERS - len(text) - 1))
        text += f"\n{listed}"[: TAG_CHARACTERS - len(text)] if listed else ""
        client.set_experiment_tag(self.id, "mlflow.note.content", text)
        if len(mine) > 1:
            unit = record.rate_name(answer.best.throughput.unit if answer is not None else "samples/s")
            apart = record.differing(mine)
            script = record.script_id(study)
            self._write_view(
                saved_views.searches_id(script),
                "autotune: all searches",
                study,
                lambda: saved_views.searches_state(self.id, script, unit, apart),
            )

    def _create(self, name: str) -> Any:
        client, database = self._connection.client, self._connection.database
        location: str | None = None
        if database is not None:
            # Without it, artifacts go to a folder `mlruns` relative to the working directory.
            folder = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "experiment"
            location = (artifact_folder(database) / folder).as_uri()
        tags = {"mlflow.experimentKind": "custom_model_development"}
        with contextlib.suppress(Exception):
            # Another process may create it at the same moment; only its existence matters.
            client.create_experiment(name, artifact_location=location, tags=tags)
        found = client.get_experiment_by_name(name)
        if found is None:
            client.create_experiment(name, artifact_location=location, tags=tags)
            found = client.get_experiment_by_name(name)
        return found

    def _searches(self) -> list[record.Search]:
        """Return every search of the experiment, of any script."""
        return [
            record.Search(
                study_id=run.data.tags.get("autotune.study_id", ""),
                label=run.data.tags.get("autotune.label", str(run.info.run_name)),
                answer=run.data.tags.get("autotune.answer", ""),
                link=self.run_path(run.info.run_id)[1:],
                started_ms=int(run.info.start_time),
                params=run.data.params,
                script=run.data.tags.get("autotune.script", ""),
            )
            for run in self._connection.runs(self.id, "tags.`autotune.role` = 'study'")
        ]

    def _write_view(self, name: str, title: str, study: Study, make: Callable[[], dict[str, Any]]) -> None:
        # The format is internal to MLflow and may change: the result does not depend on it.
        self._name_views(study)
        self._views.discard(name)
        client = self._connection.client
        try:
            if not saved_views.is_tested(self._connection.ui_version()):
                return
            state = make()
            tag = saved_views.view_tag(title, state, round(study.created * 1000))
            if len(tag) > saved_views.LONGEST_TAG:
                return
            client.set_experiment_tag(self.id, saved_views.TAG + name, tag)
            back = client.get_experiment(self.id).tags.get(saved_views.TAG + name, "")
            if saved_views.decode_view(back) == state:
                self._views.add(name)
        except Exception:
            log.debug("no saved view was written", exc_info=True)

    def _name_views(self, study: Study) -> None:
        self._view_id = saved_views.view_id(study)
        self._searches_id = saved_views.searches_id(record.script_id(study))

    def _reads_views(self) -> bool:
        """Return whether the serving MLflow has a version that was tested to read a view."""
        try:
            return saved_views.is_tested(self._connection.ui_version())
        except Exception:
            log.debug("the version of MLflow is not known", exc_info=True)
            return False
