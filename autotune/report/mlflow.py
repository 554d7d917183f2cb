"""MLflow as a view of a study: one run per study, below it one per trial. The only importer of mlflow.

Nothing is ever read back from MLflow to decide anything; the journal holds it all. Every operation
may be repeated: runs are found again by tags of ours, times come from the journal, parameters are
written once. Only `MlflowClient` is used, never the fluent interface, whose state belongs to the
user's own code.

Texts shown by MLflow's UI were laid out for 3.17 in its "Model training" mode, which our links ask
for by ``workflowType=machine_learning``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import re
import urllib.parse
import uuid
import zlib
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.trial import Family, Trial, TrialState
from autotune.core.wire import to_wire
from autotune.errors import TrackerUnavailable
from autotune.report import summary, why
from autotune.report.page import report_html

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from autotune.core.config import Value
    from autotune.core.pick import Answer
    from autotune.core.study import Study

log = logging.getLogger(__name__)

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Defaults for our own process; what the user set stays. The outbox does the retrying."""

VIEW_MAJOR_VERSIONS = ("3",)
"""Major versions of MLflow whose UI is known to read our saved view; its format is undocumented."""

_SCHEMA = "1"
_ML = "workflowType=machine_learning"
_TAG_CHARACTERS = 4900
_VIEW_CHARACTERS = 20_000
_PARAM_CHARACTERS = 500
_LOSS_POINTS = 300
_FAILED_LOGS = 20
_UNAVAILABLE = (401, 403, 404, 408, 429)


class Refused(TrackerUnavailable):
    """MLflow is there but does not take this record; sending it again changes nothing."""


class MlflowSink:
    """Writes one study into one MLflow store.

    Not thread-safe: used from the thread that sends. `open` is slow (import, and about seven
    seconds for the first migration of a new SQLite store) and happens with the first `send` at
    the latest.

    Args:
        tracking_uri: Explicit; MLflow's own choice of a default is never relied on.
        experiment: Name; empty for ``autotune/<script stem>``.
        artifact_root: Where a local store keeps artifacts; beside its database where None.
        clean: Takes secrets out of every text before it is sent, the report aside: that is made without.
        files: Further artifacts of a study, by where they go: profiles; they are sent as they are.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str = "",
        *,
        artifact_root: Path | None = None,
        clean: Callable[[str], str] = str,
        files: Callable[[Study], Mapping[str, Path]] | None = None,
    ) -> None:
        self.tracking_uri = absolute_uri(tracking_uri, str(Path.cwd()))
        self._experiment = experiment
        self._artifact_root = artifact_root
        self._clean = clean
        self._files = files
        self._client: Any = None
        self._entities: Any = None
        self._version = ""
        self._experiment_id = ""
        self._parent = ""
        self._parent_name = ""
        self._children: dict[str, _Child] | None = None
        self._has_view = False

    def open(self) -> None:
        """Import MLflow and make sure that the store answers.

        Raises:
            TrackerUnavailable: It does not.
        """
        if self._client is not None:
            return
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        with _border(self.tracking_uri), _loggers_kept():
            import mlflow
            import mlflow.entities
            from mlflow import MlflowClient

            # The import has just set it to a level that tells of every table made.
            logging.getLogger("mlflow").setLevel(logging.WARNING)

            if path := sqlite_path(self.tracking_uri):
                path.parent.mkdir(parents=True, exist_ok=True)
            client = MlflowClient(tracking_uri=self.tracking_uri)
            client.search_experiments(max_results=1)
            self._version = str(mlflow.__version__)
            self._entities = mlflow.entities
            self._client = client

    def send(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None = None) -> None:
        """Carry out one operation; harmless when repeated.

        Args:
            op: ``study_began``, ``trial_ended`` (with ``number``) or ``study_ended``.
            payload: With ``wall_s``, when it happened; ``best_yaml`` with ``study_ended``.
            study: As it is by now.
            answer: As it is by now, None where there is none.

        Raises:
            Refused: MLflow rejects this record.
            TrackerUnavailable: MLflow cannot be reached.
        """
        self.open()
        try:
            with _border(self.tracking_uri):
                self._carry_out(op, payload, study, answer)
        except TrackerUnavailable:
            # Somebody may have deleted what we remember; the next try looks again.
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
        """Name -> address of what to look at, best first; a command where no server runs."""
        if not self._parent:
            return {}
        if not self.tracking_uri.startswith(("http://", "https://")):
            return {"answer": "autotune ui"}
        base = self._clean(self.tracking_uri.rstrip("/"))
        return {name: base + path for name, path in self.paths().items()}

    def paths(self) -> dict[str, str]:
        """The same below any server that serves this store: what `autotune ui` opens."""
        if not self._parent:
            return {}
        experiment = f"/#/experiments/{self._experiment_id}/runs"
        paths = {"answer": f"{experiment}/{self._parent}?{_ML}"}
        if self._has_view:
            # A link to a view that is not there ends on MLflow's bare experiment page.
            paths["table"] = f"{experiment}?{_ML}&viewStateShareKey={self._view_id}"
            paths["charts"] = f"{paths['table']}&compareRunsMode=CHART"
        return paths

    def find(self, study: Study) -> dict[str, str]:
        """The paths of a study that was logged before; nothing is written.

        Raises:
            TrackerUnavailable: The store cannot be reached.
        """
        self.open()
        with _border(self.tracking_uri):
            name = self._experiment or f"autotune/{study.spec.stem}"
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                return {}
            self._experiment_id = str(experiment.experiment_id)
            self._view_id = self._view_id_of(study)
            self._has_view = f"mlflow.sharedViewState.{self._view_id}" in experiment.tags
            found = self._search(study, "study")
        self._parent = found[0].info.run_id if found else ""
        return self.paths()

    # -- the three operations -----------------------------------------------------------------

    def _study_began(self, study: Study, answer: Answer | None) -> None:
        self._ensure_parent(study, answer)
        self._client.update_run(self._parent, status="RUNNING")
        self._rename_parent(summary.run_name(study, answer))

    def _trial_ended(self, payload: Mapping[str, Any], study: Study) -> None:
        number = int(payload["number"])
        trial = next((t for t in study.trials if t.number == number and t.state is TrialState.TOLD), None)
        if trial is None:
            message = f"trial {number} has no outcome in study {study.spec.study_id}"
            raise Refused(message)
        self._ensure_parent(study, None)
        end_ms = round(float(payload["wall_s"]) * 1000)
        self._write_child(study, trial, end_ms, payload)
        best = summary.best_so_far(study, up_to=number)
        if best is not None:
            point = self._metric("best_so_far_speedup", best[0], end_ms, number)
            self._client.log_batch(self._parent, metrics=point, synchronous=True)
        if not study.stopped:
            self._rename_parent(summary.run_name(study, None))

    def _study_ended(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> None:
        self._ensure_parent(study, answer)
        end_ms = round(float(payload["wall_s"]) * 1000)
        picks = summary.picks_of(answer)
        self._mark_picks(study, answer, picks)
        self._write_params(study, answer)
        self._client.log_batch(
            self._parent,
            metrics=self._study_metrics(study, answer, end_ms),
            tags=self._tags(self._study_tags(study, answer, picks)),
            synchronous=True,
        )
        for name, text in self._artifacts(payload, study, answer).items():
            self._client.log_text(self._parent, text, name)
        for name, path in (self._files(study) if self._files is not None else {}).items():
            self._client.log_artifact(self._parent, str(path), name.rpartition("/")[0])
        self._write_experiment(study, answer)
        self._rename_parent(summary.run_name(study, answer))
        self._client.set_terminated(self._parent, status=_study_status(study), end_time=end_ms)

    # -- experiment ---------------------------------------------------------------------------

    def _ensure_experiment(self, study: Study) -> None:
        if self._experiment_id:
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
        if path := sqlite_path(self.tracking_uri):
            # Without it artifacts land in a folder `mlruns` relative to the working directory.
            root = self._artifact_root or path.parent / "mlartifacts"
            folder = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "experiment"
            location = (root / folder).as_uri()
        tags = {"mlflow.experimentKind": "custom_model_development"}
        with contextlib.suppress(Exception):
            # Somebody else may make it at the same moment: what counts is that it is there.
            self._client.create_experiment(name, artifact_location=location, tags=tags)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            self._client.create_experiment(name, artifact_location=location, tags=tags)
            found = self._client.get_experiment_by_name(name)
        return found

    def _write_experiment(self, study: Study, answer: Answer | None) -> None:
        put = self._client.set_experiment_tag
        link = self.paths().get("answer", "")
        text = self._clean(summary.experiment_note(study, answer, run_link=link))
        put(self._experiment_id, "mlflow.note.content", text[:_TAG_CHARACTERS])
        if answer is not None and answer.is_better:
            best = self._child(study, answer.best.trial)
            put(self._experiment_id, "autotune.best_run_id", best or self._parent)
        self._write_view(study)

    def _write_view(self, study: Study) -> None:
        # The format is MLflow's own and may change with any version: the result stands without it.
        try:
            if self._version.split(".")[0] not in VIEW_MAJOR_VERSIONS:
                return
            state = view_state(study)
            tag = view_tag(f"autotune {study.spec.label}", state, round(study.created * 1000))
            if len(tag) > _VIEW_CHARACTERS:
                return
            key = f"mlflow.sharedViewState.{self._view_id_of(study)}"
            self._client.set_experiment_tag(self._experiment_id, key, tag)
            back = self._client.get_experiment(self._experiment_id).tags.get(key, "")
            self._has_view = decode_view(back) == state
        except Exception:
            log.debug("no saved view was written", exc_info=True)
            self._has_view = False
        self._view_id = self._view_id_of(study)

    _view_id = ""

    @staticmethod
    def _view_id_of(study: Study) -> str:
        return f"autotune-{study.spec.study_id}"

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
        }
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
        text = self._clean(summary.note(study, answer, links=links, held_back=self._held_back(study, answer)))
        if len(text) > _TAG_CHARACTERS:
            text = (
                text[: _TAG_CHARACTERS - 60].rsplit("\n", 1)[0]
                + "\n\nThe rest is in the artifact `report.md`.\n"
            )
        tags = {
            "mlflow.note.content": text,
            "autotune.status": summary.status(study, answer),
            "autotune.answer": summary.headline(study, answer, interval=True),
            "autotune.label": study.spec.label,
            "mlflow.source.name": summary.user_command(study),
            "mlflow.source.type": "LOCAL",
        }
        if study.spec.git_commit:
            tags["mlflow.source.git.commit"] = study.spec.git_commit
        if study.stopped:
            tags["autotune.stopped"] = study.stopped
        if answer is not None:
            tags |= why.why_tags(study, answer)
        if answer is not None and answer.is_better:
            tags["autotune.apply"] = summary.apply_command(study)
        for number, names in picks.items():
            if run_id := self._child(study, number):
                tags.update({f"autotune.{name}_run_id": run_id for name in names})
        return tags

    def _study_metrics(self, study: Study, answer: Answer | None, end_ms: int) -> list[Any]:
        figures: dict[str, float | None] = {}
        if answer is not None:
            best, fastest = answer.best, answer.fastest
            unit = _rate_name(best.throughput.unit)
            figures |= {"speedup": best.speedup.value}
            if answer.is_better:
                figures |= {"speedup_ci_low": best.speedup.low, "speedup_ci_high": best.speedup.high}
                figures |= {"safe_speedup": answer.safe.speedup.value}
                figures |= {"fastest_speedup": fastest.speedup.value if fastest else None}
            figures |= {
                unit: best.throughput.value,
                f"baseline_{unit}": answer.baseline_throughput.value,
                "peak_mem_gib": _gib(best.peak_bytes),
                "baseline_peak_mem_gib": _gib(answer.baseline_peak_bytes),
                "loss_delta": best.loss.delta if answer.is_better and best.loss.level > 0 else None,
            }
            figures |= why.why_figures(study, answer)
        figures |= {
            "trials": float(len(study.told())),
            "trials_failed": float(summary.failed_count(study)),
            "search_seconds": study.elapsed_s,
        }
        return [m for name, value in figures.items() for m in self._metric(name, value, end_ms)]

    def _write_params(self, study: Study, answer: Answer | None) -> None:
        spec = study.spec
        params: dict[str, str] = {}
        if answer is not None:
            resolved = _resolved(study, answer.best.config)
            changed = [k for k, _ in summary.in_order(answer.best.config)]
            order = changed + [k for k, _ in summary.in_order(resolved) if k not in changed]
            params |= {knob: param_text(resolved[knob]) for knob in order}
        params |= {
            "script": spec.title,
            "budget": summary.duration_text(spec.budget.seconds),
            # Beside the knob of that name, which has a number.
            "effective_batch_rule": spec.effective_batch,
        }
        known = self._client.get_run(self._parent).data.params
        new = {k: self._short(v, _PARAM_CHARACTERS) for k, v in params.items()}
        # MLflow never changes a parameter. A search that was resumed may have another answer now.
        newer = {f"autotune.newer.{k}": v for k, v in new.items() if known.get(k, v) != v}
        fresh = [self._entities.Param(k, v) for k, v in new.items() if k not in known]
        if fresh or newer:
            self._client.log_batch(self._parent, params=fresh, tags=self._tags(newer), synchronous=True)

    def _artifacts(self, payload: Mapping[str, Any], study: Study, answer: Answer | None) -> dict[str, str]:
        texts = {
            "report.md": summary.note(study, answer, held_back=self._held_back(study, answer)),
            "trials.json": trials_json(study),
        }
        if answer is not None:
            texts["front.json"] = json.dumps(to_wire(answer.front), indent=1)
            texts["pareto.svg"] = pareto_svg(study, answer)
        if best_yaml := payload.get("best_yaml"):
            texts["best.yaml"] = str(best_yaml)
        failed = [t for t in study.told() if t.failure is not None and _log_tail(t)]
        for trial in failed[:_FAILED_LOGS]:
            label = trial.failure.kind.label if trial.failure else ""
            texts[f"failed/t{trial.number:02d}-{label}.log"] = _log_tail(trial)
        # The page is made of clean texts. As a whole it is none: a pattern for texts would take markup for
        # a part of a secret.
        page = {"report.html": report_html(study, answer)}
        return page | {name: self._clean(text) for name, text in texts.items()}

    @staticmethod
    def _held_back(study: Study, answer: Answer | None) -> list[str]:
        return [] if answer is None else why.why_lines(study, answer)

    # -- children -----------------------------------------------------------------------------

    def _write_child(self, study: Study, trial: Trial, end_ms: int, payload: Mapping[str, Any]) -> None:
        children = self._known_children(study)
        uid = _trial_uid(study, trial)
        knobs = _resolved(study, trial.config)
        params = {k: self._short(param_text(v), _PARAM_CHARACTERS) for k, v in summary.in_order(knobs)}
        start_ms = end_ms - round(trial.seconds * 1000)
        known = children.get(uid)
        if known is None:
            name = self._clean(summary.trial_name(trial, knobs=knobs))
            tags = {**self._trial_tags(study, trial, payload), "mlflow.parentRunId": self._parent}
            run = self._client.create_run(
                self._experiment_id,
                start_time=start_ms,
                tags={key: self._short(value) for key, value in tags.items()},
                run_name=name,
            )
            known = children[uid] = _Child(run.info.run_id, name, "")
        else:
            # A run that was half written before, or is sent again: only what is missing.
            there = self._client.get_run(known.run_id).data.params
            params = {k: v for k, v in params.items() if k not in there}
        self._client.log_batch(
            known.run_id,
            metrics=self._trial_metrics(study, trial, start_ms, end_ms),
            params=[self._entities.Param(k, v) for k, v in params.items()],
            synchronous=True,
        )
        if tail := _log_tail(trial):
            self._client.log_text(known.run_id, self._clean(tail), "log_tail.txt")
        self._client.set_terminated(known.run_id, status=_trial_status(trial), end_time=end_ms)

    def _trial_tags(self, study: Study, trial: Trial, payload: Mapping[str, Any]) -> dict[str, str]:
        tags = {
            "autotune.role": "trial",
            "autotune.trial_uid": _trial_uid(study, trial),
            "autotune.study_id": study.spec.study_id,
            "autotune.status": summary.status_word(trial),
            "autotune.stage": trial.stage.value,
            "autotune.source": trial.source.value,
            "autotune.config": trial.config.text(),
            "autotune.command": str(payload.get("command") or summary.user_command(study)),
            "autotune.why": trial.reason,
            "autotune.seed": str(trial.seed),
            "autotune.attempt": str(trial.attempt),
        }
        if trial.group:
            tags["autotune.pair"] = str(trial.group)
        if trial.failure is not None:
            tags |= {"autotune.kind": trial.failure.kind.label, "autotune.reason": trial.failure.message}
        if trial.measurement is not None:
            tags["autotune.ended"] = trial.measurement.ended
            if flags := trial.measurement.contamination.flags:
                tags["autotune.flags"] = ",".join(flags)
        return {key: value for key, value in tags.items() if value}

    def _trial_metrics(self, study: Study, trial: Trial, start_ms: int, end_ms: int) -> list[Any]:
        seen = trial.measurement or (trial.failure.readings if trial.failure else None)
        ratio = summary.speedup_of(study, trial)
        figures: dict[str, float | None] = {}
        if ratio is not None:
            figures |= {"speedup": ratio.value, "speedup_ci_low": ratio.low, "speedup_ci_high": ratio.high}
        if seen is not None:
            figures |= {
                _rate_name(seen.throughput.unit): seen.throughput.value,
                "step_time_ms": 1000 * seen.step_time_s.value,
                "peak_mem_gib": _gib(seen.memory.peak_bytes),
                "data_wait_percent": 100 * seen.data_wait_frac,
                "loss": None,
                "compile_seconds": seen.compile_s,
                "startup_seconds": seen.startup_s,
                "effective_batch_seen": seen.effective_batch,
                "window_seconds": seen.window_s,
                **why.trial_figures(study, seen),
            }
        figures["trial_seconds"] = trial.seconds
        metrics = [m for name, value in figures.items() for m in self._metric(name, value, end_ms)]
        for point in thinned(seen.loss if seen else (), _LOSS_POINTS):
            metrics += self._metric("loss", point.loss, start_ms + round(1000 * point.t_s), point.samples)
        return metrics

    def _mark_picks(self, study: Study, answer: Answer | None, picks: Mapping[int, Sequence[str]]) -> None:
        front = {m.trial for m in answer.front} if answer is not None else set[int]()
        children = self._known_children(study)
        for trial in study.told():
            child = children.get(_trial_uid(study, trial))
            if child is None:
                continue
            mine = list(picks.get(trial.number, ()))
            name = self._clean(summary.trial_name(trial, picks=mine, knobs=_resolved(study, trial.config)))
            if name != child.name:
                self._client.update_run(child.run_id, name=name)
                child.name = name
            marks = f"{','.join(mine)}|{trial.number in front}"
            if marks != child.marks and (mine or trial.number in front or child.marks):
                tags = {
                    "autotune.pick": ",".join(mine) or "none",
                    "autotune.pareto": str(trial.number in front).lower(),
                }
                self._client.log_batch(child.run_id, tags=self._tags(tags), synchronous=True)
                child.marks = marks

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
        trial = next((t for t in study.told() if t.number == number), None)
        child = self._known_children(study).get(_trial_uid(study, trial)) if trial is not None else None
        return child.run_id if child is not None else ""

    # -- small things -------------------------------------------------------------------------

    def _search(self, study: Study, role: str) -> list[Any]:
        condition = f"tags.`autotune.study_id` = '{study.spec.study_id}' and tags.`autotune.role` = '{role}'"
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


class _Child:
    """What is known of a trial's run."""

    def __init__(self, run_id: str, name: str, marks: str) -> None:
        self.run_id = run_id
        self.name = name
        self.marks = marks


def absolute_uri(uri: str, cwd: str) -> str:
    """The same store, whatever directory is looked from: a relative SQLite path made absolute."""
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        path = uri[len("sqlite:///") :]
        if path and not path.startswith((":memory:", "file:")):
            return f"sqlite:///{Path(cwd, path).absolute()}"
    return uri


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite store, None for any other."""
    if not uri.startswith("sqlite:///"):
        return None
    path = uri[len("sqlite:///") :].split("?", maxsplit=1)[0]
    return Path(path) if path and not path.startswith((":memory:", "file:")) else None


def param_text(value: Value) -> str:
    """A knob's value as a parameter; one notation per type, since charts tell numbers from words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def thinned(points: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the points, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def trials_json(study: Study) -> str:
    """Every trial with everything that is known of it, as one JSON document."""
    rows: list[dict[str, Any]] = []
    for trial in study.trials:
        ratio = summary.speedup_of(study, trial)
        rows.append(
            {
                "name": summary.trial_name(trial),
                "speedup": None if ratio is None else to_wire(ratio),
                "trial": to_wire(trial),
            }
        )
    return json.dumps({"study": study.spec.study_id, "trials": rows}, indent=1, allow_nan=False)


def view_tag(name: str, state: Mapping[str, object], now_ms: int) -> str:
    """The value of an experiment tag that MLflow's UI shows as a saved view."""
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": now_ms, "updatedAt": now_ms, "state": "deflate;" + packed})


def decode_view(tag: str) -> dict[str, Any]:
    """The state in such a tag.

    Raises:
        ValueError: It is none.
    """
    try:
        packed = str(json.loads(tag)["state"])
        text = zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"), validate=True))
        return dict(json.loads(text))
    except (KeyError, TypeError, zlib.error) as error:
        message = "not a saved view"
        raise ValueError(message) from error


def view_state(study: Study) -> dict[str, Any]:
    """A table sorted by speed-up with the knobs as columns, and four charts; stable per study."""
    changed = sorted({knob for trial in study.trials for knob in trial.config})
    knobs = [knob for knob, _ in summary.in_order(dict.fromkeys(changed, 0))]
    unit = next((t.measurement.throughput.unit for t in study.told() if t.measurement), "samples/s")
    rate = _rate_name(unit)
    columns = [
        "metrics.`speedup`",
        f"metrics.`{rate}`",
        "metrics.`peak_mem_gib`",
        *(f"params.`{knob}`" for knob in knobs[:12]),
        "tags.`autotune.status`",
        "tags.`autotune.stage`",
        "tags.`autotune.pick`",
        "attributes.`Source`",
    ]
    section = _stable_id(study, "section")
    common = {"metricSectionId": section, "runsCountToCompare": 100, "deleted": False, "isGenerated": False}
    axis = {"type": "METRIC", "index": 0}
    charts: list[dict[str, Any]] = [
        {"type": "SCATTER", "xaxis": {**axis, "key": "peak_mem_gib"}, "yaxis": {**axis, "key": rate}},
        {
            "type": "PARALLEL",
            "selectedParams": knobs[:5],
            "selectedMetrics": ["speedup"],
            "showAllRuns": False,
        },
        {"type": "BAR", "metricKey": "speedup"},
        {
            "type": "LINE",
            "metricKey": "best_so_far_speedup",
            "selectedMetricKeys": ["best_so_far_speedup"],
            "xAxisKey": "step",
            "lineSmoothness": 0,
            "scaleType": "linear",
        },
    ]
    if not knobs:
        charts = [chart for chart in charts if chart["type"] != "PARALLEL"]
    return {
        "searchFilter": f"tags.`autotune.study_id` = '{study.spec.study_id}'",
        "orderByKey": "metrics.`speedup`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [
            {
                "uuid": section,
                "name": "autotune: what to pick and why",
                "display": True,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
            }
        ],
        "compareRunCharts": [
            {"uuid": _stable_id(study, str(chart["type"])), **common, **chart} for chart in charts
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def pareto_svg(study: Study, answer: Answer) -> str:
    """Throughput against peak memory of every measured trial; the front joined, picks named."""
    points = [
        (t.measurement.memory.peak_bytes / summary.GIB, t.measurement.throughput.value, t)
        for t in study.told()
        if t.measurement is not None and t.measurement.memory.peak_bytes is not None
    ]
    width, height, left, right, top, bottom = 720, 440, 80, 30, 40, 60
    unit = answer.baseline_throughput.unit
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="22" font-size="15">'
        f"{escape(summary.headline(study, answer)[:100])}</text>"
    )
    if not points:
        return f'{head}<text x="{left}" y="120">No trial reported its peak memory.</text></svg>\n'
    most_x = 1.1 * max(p[0] for p in points) or 1.0
    most_y = 1.15 * max(p[1] for p in points) or 1.0

    def place(gib: float, rate: float) -> tuple[float, float]:
        x = left + (width - left - right) * gib / most_x
        return round(x, 1), round(height - bottom - (height - top - bottom) * rate / most_y, 1)

    parts = [head]
    floor, number = height - bottom, summary.number_text
    for i in range(6):
        gib, rate = most_x * i / 5, most_y * i / 5
        x, y = place(gib, rate)
        parts += [
            f'<path d="M{x} {floor}V{top}M{left} {y}H{width - right}" stroke="#ddd" fill="none"/>',
            f'<text x="{x}" y="{floor + 18}" text-anchor="middle">{number(gib, 3)}</text>',
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{number(rate, 3)}</text>',
        ]
    middle_x, middle_y = (left + width - right) / 2, -height / 2
    parts += [
        f'<text x="{middle_x}" y="{height - 14}" text-anchor="middle">peak memory, GiB</text>',
        f'<text transform="rotate(-90)" x="{middle_y}" y="18" text-anchor="middle">',
        f"throughput, {escape(unit)}</text>",
    ]
    front = {m.trial for m in answer.front}
    line = sorted(place(gib, rate) for gib, rate, t in points if t.number in front)
    if len(line) > 1:
        path = " ".join(f"{x},{y}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#0b7" stroke-dasharray="4 3"/>')
    picks = summary.picks_of(answer)
    for gib, rate, trial in points:
        x, y = place(gib, rate)
        color = "#c33" if trial.config.is_baseline else "#0b7" if trial.number in front else "#999"
        names = "+".join(picks.get(trial.number, ())) or ("your script" if trial.number == 0 else "")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{6 if names else 4}" fill="{color}">'
            f"<title>{escape(summary.trial_name(trial))}</title></circle>"
        )
        if names:
            parts.append(f'<text x="{x + 9}" y="{y - 6}" font-weight="bold">{escape(names)}</text>')
    return "".join(parts) + "</svg>\n"


def _stable_id(study: Study, part: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"autotune:{study.spec.study_id}:{part}"))


def _trial_uid(study: Study, trial: Trial) -> str:
    # One outcome per trial, whatever attempt it came from: the attempt may not name the run.
    return f"{study.spec.study_id}/t{trial.number:04d}a"


def _resolved(study: Study, config: Mapping[str, Value]) -> dict[str, Value]:
    """Every knob's value under this config; from facts alone, so that a later replay says the same."""
    run = study.facts.run if study.facts is not None else None
    return {**(run.values if run is not None else {}), **config}


def _rate_name(unit: str) -> str:
    return "throughput_" + re.sub(r"[^A-Za-z0-9]+", "_", unit).strip("_")


def _gib(size: int | None) -> float | None:
    return None if size is None else size / summary.GIB


def _log_tail(trial: Trial) -> str:
    return str(trial.failure.evidence.get("log_tail", "")) if trial.failure is not None else ""


def _trial_status(trial: Trial) -> str:
    if trial.failure is None:
        return "FINISHED"
    return "KILLED" if trial.failure.kind.family is Family.CANCELLED else "FAILED"


def _study_status(study: Study) -> str:
    if summary.failed_baseline(study) is not None:
        return "FAILED"
    return "KILLED" if study.stopped in ("interrupted", "signal") else "FINISHED"


@contextlib.contextmanager
def _border(uri: str) -> Generator[None, None, None]:
    """The one place where MLflow's errors, whatever they are, become ours."""
    try:
        yield
    except TrackerUnavailable:
        raise
    except Exception as error:
        shown = _without_userinfo(uri)
        code: Callable[[], Any] | None = getattr(error, "get_http_status_code", None)
        status = int(code()) if code is not None else 0
        # MLflow puts the whole address into its texts, password included.
        said = re.sub(r"://[^\s/@]+@", "://", str(error)).strip().split("\n")[0][:300]
        text = f"{type(error).__name__}: {said}"
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)) or (
            400 <= status < 500 and status not in _UNAVAILABLE
        ):
            log.debug("MLflow refused a record", exc_info=True)
            message = f"MLflow at {shown} does not take a record: {text}"
            raise Refused(message) from error
        message = f"MLflow at {shown} cannot be reached: {text}"
        raise TrackerUnavailable(message, hint="Nothing is lost; `autotune sync` sends it later.") from error


@contextlib.contextmanager
def _loggers_kept() -> Generator[None, None, None]:
    """Importing and migrating configures logging for the whole process; put ours back."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    before = [
        (one, one.disabled)
        for name, one in root.manager.loggerDict.items()
        if isinstance(one, logging.Logger) and not name.startswith(("mlflow", "alembic"))
    ]
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for one, disabled in before:
            one.disabled = disabled
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _without_userinfo(uri: str) -> str:
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError:
        return "the given address"
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]).geturl()
