"""MLflow recorder: one run per study, with one child run per trial. The only importer of mlflow.

Decisions never depend on MLflow; the journal holds everything. Every operation can be repeated: runs are
found by their tags, times come from the journal, and parameters are written once. Only `MlflowClient` is
used, as the state of the fluent interface belongs to the user's code.

A trial costs three calls while others may be measured: create its run, fill it by one batch, end it. The
study's own run, with the curve of the best so far, is written at the start and at the end.

Texts are laid out for MLflow's UI 3.17 in its "Model training" mode, which the links request by
``workflowType=machine_learning``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.answer.advice import advice_of, advice_text
from autotune.compare.disturbances import busy_notes
from autotune.errors import TrackerUnavailable
from autotune.model.config import in_order
from autotune.model.trial import Trial, TrialState
from autotune.model.wire import to_wire
from autotune.report.html.page import report_html
from autotune.report.mlflow import artifacts as files
from autotune.report.mlflow import run_content as record
from autotune.report.mlflow import saved_views
from autotune.report.mlflow.local_store import artifact_folder, close_tree, plain_uri, prepare
from autotune.report.mlflow.store import SETTINGS, Refused, absolute_uri, border, loggers_kept, sqlite_path
from autotune.report.text import study_notes
from autotune.report.view import bottleneck_text, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.answer.answer import Answer
    from autotune.model.study import Study

__all__ = ["MlflowSink", "Refused", "absolute_uri"]

log = logging.getLogger(__name__)

_SCHEMA = "2"
_ML = "workflowType=machine_learning"
_TAG_CHARACTERS = 4900
_PARAM_CHARACTERS = 500


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
        self._experiment = experiment
        self._own = own
        self._database = own or sqlite_path(self.tracking_uri)
        self._clean = clean
        self._files = files
        self._client: Any = None
        self._entities: Any = None
        self._version = ""
        self._experiment_id = ""
        self._parent = ""
        self._parent_name = ""
        self._children: dict[str, _Child] | None = None
        self._views: set[str] = set()
        self._served: str | None = None
        self._view_id = self._searches_id = ""

    def open(self) -> None:
        """Import MLflow and check that the store responds.

        Raises:
            TrackerUnavailable: The store does not respond.
        """
        if self._client is not None:
            return
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        # The import of tqdm warns in a notebook without ipywidgets; none of its bars is shown.
        warnings.filterwarnings("ignore", message="IProgress not found")
        with border(self.tracking_uri), loggers_kept():
            import mlflow
            import mlflow.entities
            from mlflow import MlflowClient

            # The import has just enabled a message for every created table.
            logging.getLogger("mlflow").setLevel(logging.WARNING)
            # It logs every database error with its statement in addition to raising it.
            logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

            if self._database is not None:
                prepare(self._database, _create_database, own=self._own is not None)
            client = MlflowClient(tracking_uri=plain_uri(self._own) if self._own else self.tracking_uri)
            client.search_experiments(max_results=1)
            self._version = str(mlflow.__version__)
            self._entities = mlflow.entities
            self._client = client

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
            self._experiment_id = self._parent = self._parent_name = ""
            self._children = None
            raise

    def _carry_out(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> None:
        if op == "study_began":
            self._study_began(study, answer)
        elif op == "trial_ended":
            self._trial_ended(payload, study)
        elif op == "study_ended":
            self._study_ended(payload, study, answer)

    def links(self) -> dict[str, str]:
        """Return addresses by name, the most useful first; a command if no server runs."""
        if not self._parent:
            return {}
        if not self.tracking_uri.startswith(("http://", "https://")):
            return {"answer": "autotune ui"}
        base = self._clean(self.tracking_uri.rstrip("/"))
        return {name: base + path for name, path in self.paths().items()}

    def paths(self) -> dict[str, str]:
        """Return paths of the same pages below any server of this store, as `autotune ui` opens them."""
        if not self._parent:
            return {}
        experiment = f"/#/experiments/{self._experiment_id}/runs"
        paths = {"answer": f"{experiment}/{self._parent}?{_ML}"}
        # A link to a missing view ends on MLflow's bare experiment page.
        if self._view_id in self._views:
            paths["table"] = f"{experiment}?{_ML}&viewStateShareKey={self._view_id}"
            paths["charts"] = f"{paths['table']}&compareRunsMode=CHART"
        if self._searches_id in self._views:
            paths["searches"] = f"{experiment}?{_ML}&viewStateShareKey={self._searches_id}"
        return paths

    def find(self, study: Study) -> dict[str, str]:
        """Return the paths of a study that was logged before, without writing.

        Raises:
            TrackerUnavailable: The store cannot be reached.
        """
        self.open()
        with border(self.tracking_uri):
            experiment = self._experiment_of(study)
            if experiment is None:
                return {}
            self._experiment_id = str(experiment.experiment_id)
            self._name_views(study)
            kept = {
                key.removeprefix(saved_views.TAG)
                for key in experiment.tags
                if key.startswith(saved_views.TAG)
            }
            # The server may have another version than the one for which the pages were written.
            self._views = kept if kept and self._reads_views() else set()
            found = self._search(study, "study")
        self._parent = found[0].info.run_id if found else ""
        return self.paths()

    def _experiment_of(self, study: Study) -> Any:
        """Return the experiment that holds the study's run; None if there is none."""
        if study.spec.mlflow_parent_run:
            run = self._client.get_run(study.spec.mlflow_parent_run)
            return self._client.get_experiment(run.info.experiment_id)
        return self._client.get_experiment_by_name(self._experiment or f"autotune/{study.spec.stem}")

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
        with border(self.tracking_uri):
            self._ensure_experiment(study)
            found = self._search(study, role)
            began_ms = round(study.created * 1000)
            own = {
                "autotune.role": role,
                "autotune.study_id": study.spec.study_id,
                "autotune.schema": _SCHEMA,
                "autotune.label": study.spec.label,
                "autotune.script": record.script_id(study),
            }
            if found:
                run_id = str(found[0].info.run_id)
            else:
                made = self._client.create_run(
                    self._experiment_id,
                    start_time=began_ms,
                    tags={key: self._short(value) for key, value in own.items()},
                    run_name=self._clean(name),
                )
                run_id = str(made.info.run_id)
            end_ms = began_ms + round(study.elapsed_s * 1000)
            points = [m for key, value, step in metrics for m in self._metric(key, value, end_ms, step)]
            self._client.log_batch(run_id, metrics=points, tags=self._tags({**own, **tags}), synchronous=True)
            for file, text in artifacts.items():
                self._client.log_text(run_id, text, file)
            if self._own is not None:
                close_tree(artifact_folder(self._own).resolve())
            self._client.set_terminated(run_id, status=record.study_status(study), end_time=end_ms)
        path = f"/#/experiments/{self._experiment_id}/runs/{run_id}?{_ML}"
        is_served = self.tracking_uri.startswith(("http://", "https://"))
        return self._clean(self.tracking_uri.rstrip("/")) + path if is_served else path

    # -- the three operations -----------------------------------------------------------------

    def _study_began(self, study: Study, answer: Answer | None) -> None:
        self._ensure_parent(study, answer)
        self._client.update_run(self._parent, status="RUNNING")
        self._rename_parent(summary.run_name(study, answer))
        self._write_study_view(study, answer)

    def _trial_ended(self, payload: Mapping[str, Any], study: Study) -> None:
        number = int(payload["number"])
        trial = next((t for t in study.trials if t.number == number and t.state is TrialState.FINISHED), None)
        if trial is None:
            message = f"trial {number} has no outcome in study {study.spec.study_id}"
            raise Refused(message)
        self._ensure_parent(study, None)
        end_ms = round(float(payload["wall_s"]) * 1000)
        self._write_child(study, trial, end_ms, payload)

    def _study_ended(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> None:
        self._ensure_parent(study, answer)
        end_ms = round(float(payload["wall_s"]) * 1000)
        self._write_study_view(study, answer)
        picks = summary.picks_of(answer)
        self._mark_picks(study, answer, picks, end_ms)
        self._write_params(study, answer)
        figures = record.study_figures(study, answer)
        metrics = [m for name, value in figures.items() for m in self._metric(name, value, end_ms)]
        metrics += self._best_so_far(study)
        tags = self._tags(self._study_tags(study, answer, picks))
        self._client.log_batch(self._parent, metrics=metrics, tags=tags, synchronous=True)
        for name, text in self._artifacts(payload, study, answer).items():
            self._client.log_text(self._parent, text, name)
        for name, path in (self._files(study) if self._files is not None else {}).items():
            self._client.log_artifact(self._parent, str(path), name.rpartition("/")[0])
        self._write_logs(study)
        if self._own is not None:
            # MLflow copies files with the modes of the umask.
            close_tree(artifact_folder(self._own).resolve())
        self._rename_parent(summary.run_name(study, answer))
        self._client.set_terminated(self._parent, status=record.study_status(study), end_time=end_ms)
        self._write_experiment(study, answer)

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
            for point in self._metric(
                "best_so_far_speedup", best, began_ms + round(trial.finished_s * 1000), trial.number
            )
        ]

    # -- experiment ---------------------------------------------------------------------------

    def _ensure_experiment(self, study: Study) -> None:
        if self._experiment_id:
            return
        if study.spec.mlflow_parent_run:
            # MLflow nests runs of one experiment only.
            self._experiment_id = str(self._client.get_run(study.spec.mlflow_parent_run).info.experiment_id)
            return
        name = self._experiment or f"autotune/{study.spec.stem}"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            found = self._create_experiment(name)
        elif found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)
        self._experiment_id = str(found.experiment_id)

    def _create_experiment(self, name: str) -> Any:
        location: str | None = None
        if self._database is not None:
            # Without it, artifacts go to a folder `mlruns` relative to the working directory.
            folder = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "experiment"
            location = (artifact_folder(self._database) / folder).as_uri()
        tags = {"mlflow.experimentKind": "custom_model_development"}
        with contextlib.suppress(Exception):
            # Another process may create it at the same moment; only its existence matters.
            self._client.create_experiment(name, artifact_location=location, tags=tags)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            self._client.create_experiment(name, artifact_location=location, tags=tags)
            found = self._client.get_experiment_by_name(name)
        return found

    def _write_experiment(self, study: Study, answer: Answer | None) -> None:
        put = self._client.set_experiment_tag
        searches = self._searches()
        newest = max(searches, key=lambda one: one.started_ms, default=None)
        mine = [one for one in searches if one.script == record.script_id(study)]
        if all(one.started_ms <= round(study.created * 1000) for one in searches):
            text = self._clean(
                study_notes.experiment_note(study, answer, run_link=self.paths().get("answer", ""))
            )
            if answer is not None and answer.is_better:
                best = self._child(study, answer.best.trial)
                put(self._experiment_id, "autotune.best_run_id", best or self._parent)
        else:
            # A late message does not replace the answer of a newer search.
            tags = self._client.get_experiment(self._experiment_id).tags
            text = tags.get("mlflow.note.content", "").split(record.SEARCHES)[0].rstrip("\n") + "\n"
        # The answer comes first, whatever space is left for the list.
        text = text[:_TAG_CHARACTERS]
        # The list below the newest answer is that of its script, whichever search writes it.
        alike = [one for one in searches if newest is not None and one.script == newest.script]
        listed = self._clean(record.searches_note(alike, _TAG_CHARACTERS - len(text) - 1))
        text += f"\n{listed}"[: _TAG_CHARACTERS - len(text)] if listed else ""
        put(self._experiment_id, "mlflow.note.content", text)
        if len(mine) > 1:
            unit = record.rate_name(answer.best.throughput.unit if answer is not None else "samples/s")
            apart = record.differing(mine)
            script = record.script_id(study)
            self._write_view(
                saved_views.searches_id(script),
                "autotune: all searches",
                study,
                lambda: saved_views.searches_state(self._experiment_id, script, unit, apart),
            )

    def _write_study_view(self, study: Study, answer: Answer | None) -> None:
        title = f"autotune {study.spec.label}"
        self._write_view(
            saved_views.view_id(study), title, study, lambda: saved_views.view_state(study, answer)
        )

    def _write_view(self, name: str, title: str, study: Study, make: Callable[[], dict[str, Any]]) -> None:
        # The format is internal to MLflow and may change: the result does not depend on it.
        self._name_views(study)
        self._views.discard(name)
        try:
            if not saved_views.is_tested(self._ui_version()):
                return
            state = make()
            tag = saved_views.view_tag(title, state, round(study.created * 1000))
            if len(tag) > saved_views.LONGEST_TAG:
                return
            self._client.set_experiment_tag(self._experiment_id, saved_views.TAG + name, tag)
            back = self._client.get_experiment(self._experiment_id).tags.get(saved_views.TAG + name, "")
            if saved_views.decode_view(back) == state:
                self._views.add(name)
        except Exception:
            log.debug("no saved view was written", exc_info=True)

    def _name_views(self, study: Study) -> None:
        self._view_id, self._searches_id = (
            saved_views.view_id(study),
            saved_views.searches_id(record.script_id(study)),
        )

    def _reads_views(self) -> bool:
        """Return whether the serving MLflow has a version that was tested to read a view."""
        try:
            return saved_views.is_tested(self._ui_version())
        except Exception:
            log.debug("the version of MLflow is not known", exc_info=True)
            return False

    def _ui_version(self) -> str:
        """Return the version of the serving MLflow: the server's, or the local installation's."""
        if not self.tracking_uri.startswith(("http://", "https://")):
            return self._version
        if self._served is None:
            from mlflow.utils.credentials import get_default_host_creds
            from mlflow.utils.rest_utils import http_request

            # MLflow provides the credentials of the user.
            response: Any = http_request(get_default_host_creds(self.tracking_uri), "/version", "GET")
            self._served = str(response.text) if response.status_code == 200 else ""
        return self._served

    def _searches(self) -> list[record.Search]:
        """Return every search of the experiment, of any script."""
        base = f"#/experiments/{self._experiment_id}/runs"
        return [
            record.Search(
                study_id=run.data.tags.get("autotune.study_id", ""),
                label=run.data.tags.get("autotune.label", str(run.info.run_name)),
                answer=run.data.tags.get("autotune.answer", ""),
                link=f"{base}/{run.info.run_id}?{_ML}",
                started_ms=int(run.info.start_time),
                params=run.data.params,
                script=run.data.tags.get("autotune.script", ""),
            )
            for run in self._found("tags.`autotune.role` = 'study'")
        ]

    # -- parent -------------------------------------------------------------------------------

    def _ensure_parent(self, study: Study, answer: Answer | None) -> None:
        self._ensure_experiment(study)
        if self._parent:
            return
        found = self._search(study, "study")
        if found:
            self._parent, self._parent_name = found[0].info.run_id, str(found[0].info.run_name)
            return
        name = self._clean(summary.run_name(study, answer))
        tags = {
            "autotune.role": "study",
            "autotune.study_id": study.spec.study_id,
            "autotune.schema": _SCHEMA,
            **self._study_tags(study, None, {}),
            **dict(tag.split("=", 1) for tag in study.spec.mlflow_tags),
        }
        if study.spec.mlflow_parent_run:
            tags["mlflow.parentRunId"] = study.spec.mlflow_parent_run
        run = self._client.create_run(
            self._experiment_id,
            start_time=round(study.created * 1000),
            tags={key: self._short(value) for key, value in tags.items()},
            run_name=name,
        )
        self._parent, self._parent_name = run.info.run_id, name

    def _rename_parent(self, name: str) -> None:
        name = self._clean(name)
        if name != self._parent_name:
            self._client.update_run(self._parent, name=name)
            self._parent_name = name

    def _study_tags(
        self, study: Study, answer: Answer | None, picks: Mapping[int, Sequence[str]]
    ) -> dict[str, str]:
        links = {
            int(
                uid.rsplit("/t", 1)[1].split("a")[0]
            ): f"#/experiments/{self._experiment_id}/runs/{child.run_id}?{_ML}"
            for uid, child in (self._children or {}).items()
        }
        text = self._clean(
            study_notes.note(study, answer, links=links, held_back=self._held_back(study, answer))
        )
        more = self._view_links()
        if len(text) + len(more) > _TAG_CHARACTERS:
            more = f"{more}\nContinued in the artifact `report.md`.\n"
            text = text[: _TAG_CHARACTERS - len(more)].rsplit("\n", 1)[0] + "\n"
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
            if run_id := self._child(study, number):
                tags.update({f"autotune.{name}_run_id": run_id for name in names})
        return tags

    def _view_links(self) -> str:
        shown = {"table": "every trial in a table", "charts": "charts", "searches": "all searches"}
        links = [f"[{shown[name]}]({path[1:]})" for name, path in self.paths().items() if name in shown]
        return f"\nIn MLflow: {', '.join(links)}.\n" if links else ""

    def _write_params(self, study: Study, answer: Answer | None) -> None:
        params = record.study_params(study, answer)
        known = self._client.get_run(self._parent).data.params
        new = {k: self._short(v, _PARAM_CHARACTERS) for k, v in params.items()}
        # MLflow never changes a parameter, but a resumed search may have another answer.
        newer = {f"autotune.newer.{k}": v for k, v in new.items() if known.get(k, v) != v}
        fresh = [self._entities.Param(k, v) for k, v in new.items() if k not in known]
        if fresh or newer:
            self._client.log_batch(self._parent, params=fresh, tags=self._tags(newer), synchronous=True)

    def _artifacts(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> dict[str, str]:
        texts = {
            "report.md": study_notes.note(study, answer, held_back=self._held_back(study, answer)),
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
        return page | {name: self._clean(text) for name, text in texts.items()}

    @staticmethod
    def _held_back(study: Study, answer: Answer | None) -> list[str]:
        return [] if answer is None else bottleneck_text.why_lines(study, answer)

    # -- children -----------------------------------------------------------------------------

    def _write_child(self, study: Study, trial: Trial, end_ms: int, payload: Mapping[str, Any]) -> None:
        children = self._known_children(study)
        uid = record.trial_uid(study, trial)
        knobs = record.resolved(study, trial.config)
        params = {k: self._short(record.param_text(v), _PARAM_CHARACTERS) for k, v in in_order(knobs)}
        start_ms = end_ms - round(trial.seconds * 1000)
        known = children.get(uid)
        if known is None:
            name = self._clean(summary.trial_name(trial, knobs=knobs))
            tags = record.trial_tags(study, trial, str(payload.get("command") or ""))
            tags["mlflow.parentRunId"] = self._parent
            run = self._client.create_run(
                self._experiment_id,
                start_time=start_ms,
                tags={key: self._short(value) for key, value in tags.items()},
                run_name=name,
            )
            known = children[uid] = _Child(run.info.run_id, name, "")
        else:
            # A run that was written partly, or is sent again: add only what is missing.
            there = self._client.get_run(known.run_id).data.params
            params = {k: v for k, v in params.items() if k not in there}
        self._client.log_batch(
            known.run_id,
            metrics=self._trial_metrics(study, trial, start_ms, end_ms),
            params=[self._entities.Param(k, v) for k, v in params.items()],
            synchronous=True,
        )
        self._client.set_terminated(known.run_id, status=record.trial_status(trial), end_time=end_ms)

    def _trial_metrics(self, study: Study, trial: Trial, start_ms: int, end_ms: int) -> list[Any]:
        figures = record.trial_figures(study, trial)
        metrics = [m for name, value in figures.items() for m in self._metric(name, value, end_ms)]
        for loss, t_s, samples in record.loss_trace(trial):
            metrics += self._metric("loss", loss, start_ms + round(1000 * t_s), samples)
        return metrics

    def _write_logs(self, study: Study) -> None:
        # Not with the trial: its run would need a fourth call while the next one is measured.
        for trial in study.finished():
            if trial.failure is not None and (tail := record.log_tail(trial)):
                run_id = self._child(study, trial.number)
                if run_id:
                    self._client.log_text(run_id, self._clean(tail), "log_tail.txt")

    def _mark_picks(
        self, study: Study, answer: Answer | None, picks: Mapping[int, Sequence[str]], end_ms: int
    ) -> None:
        front = {m.trial for m in answer.front} if answer is not None else set[int]()
        confirmed = record.confirmed(study, answer)
        children = self._known_children(study)
        for trial in study.finished():
            child = children.get(record.trial_uid(study, trial))
            if child is None:
                continue
            mine = list(picks.get(trial.number, ()))
            knobs = record.resolved(study, trial.config)
            name = self._clean(summary.trial_name(trial, picks=mine, knobs=knobs))
            if name != child.name:
                self._client.update_run(child.run_id, name=name)
                child.name = name
            metrics: list[Any] = []
            tags: dict[str, str] = {}
            marks = f"{','.join(mine)}|{trial.number in front}"
            if marks != child.marks and (mine or trial.number in front or child.marks):
                tags = {
                    "autotune.pick": ",".join(mine) or "none",
                    "autotune.pareto": str(trial.number in front).lower(),
                }
                child.marks = marks
            if (seen := confirmed.get(trial.number)) is not None:
                figures = record.speedup_figures(seen.speedup)
                metrics = [m for key, value in figures.items() for m in self._metric(key, value, end_ms)]
                tags |= {"autotune.loss": seen.loss} if seen.loss else {}
            if metrics or tags:
                self._client.log_batch(child.run_id, metrics=metrics, tags=self._tags(tags), synchronous=True)

    def _known_children(self, study: Study) -> dict[str, _Child]:
        if self._children is None:
            self._children = {}
            for run in self._search(study, "trial"):
                tags = run.data.tags
                marks = (
                    f"{tags['autotune.pick']}|{tags.get('autotune.pareto')}"
                    if "autotune.pick" in tags
                    else ""
                )
                child = _Child(run.info.run_id, str(run.info.run_name), marks)
                self._children.setdefault(tags.get("autotune.trial_uid", ""), child)
        return self._children

    def _child(self, study: Study, number: int) -> str:
        trial = next((t for t in study.finished() if t.number == number), None)
        child = self._known_children(study).get(record.trial_uid(study, trial)) if trial is not None else None
        return child.run_id if child is not None else ""

    # -- small things -------------------------------------------------------------------------

    def _search(self, study: Study, role: str) -> list[Any]:
        return self._found(
            f"tags.`autotune.study_id` = '{study.spec.study_id}' and tags.`autotune.role` = '{role}'"
        )

    def _found(self, condition: str) -> list[Any]:
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                condition,
                order_by=["attributes.start_time ASC"],
                max_results=1000,
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    def _metric(self, name: str, value: float | None, timestamp_ms: int, step: int = 0) -> list[Any]:
        if value is None or not math.isfinite(value):
            return []
        return [self._entities.Metric(name, summary.significant(value), timestamp_ms, step)]

    def _tags(self, tags: Mapping[str, str]) -> list[Any]:
        return [self._entities.RunTag(key, self._short(value)) for key, value in tags.items()]

    def _short(self, text: str, most: int = _TAG_CHARACTERS) -> str:
        clean = self._clean(text)
        return clean if len(clean) <= most else clean[: most - 1] + "…"


def server_app(uri: str, own: Path | None = None) -> Any:
    """Return MLflow's web application for a store; for a dedicated process.

    Its proxy for artifacts is off: artifacts of a local store are read from their folder.

    Args:
        uri: Address of the store.
        own: As in `MlflowSink`.
    """
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    database = own or sqlite_path(uri)
    address = plain_uri(own) if own is not None else uri
    root = artifact_folder(database).as_uri() if database is not None else None
    initialize_backend_stores(
        backend_store_uri=address, registry_store_uri=address, default_artifact_root=root
    )
    return app


def _create_database(path: Path) -> None:
    """Create MLflow's tables; takes about seven seconds."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    # MLflow's default is below the working folder, whose name it writes into SQL without escaping. A new
    # database is in a temporary folder beside its final place.
    store = SqlAlchemyStore(plain_uri(path), artifact_folder(path.parent).as_uri())
    store.engine.dispose()


class _Child:
    """State of a trial's run in MLflow."""

    def __init__(self, run_id: str, name: str, marks: str) -> None:
        self.run_id = run_id
        self.name = name
        self.marks = marks
