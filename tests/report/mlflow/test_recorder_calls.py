"""What a study costs MLflow in calls, reported by a client that only counts them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import report_study

from autotune.answer.pick import answer
from autotune.model.facts import Advice
from autotune.model.machine_load import Culprit, MachineLoad
from autotune.model.study import Study
from autotune.report.mlflow import run_content as record
from autotune.report.mlflow import saved_views
from autotune.report.mlflow.recorder import MlflowSink


class Page(list[Any]):
    token = None


class Client:
    """As much of `MlflowClient` as is used, in memory; each call is noted by its name and its run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.runs: dict[str, Any] = {}
        self.experiment: Any = None
        self.numbers = itertools.count()
        self.deaf = False

    def get_experiment_by_name(self, name: str) -> Any:
        return self.experiment

    def get_experiment(self, _: str) -> Any:
        return self.experiment

    def create_experiment(self, name: str, *, artifact_location: str | None, tags: dict[str, str]) -> str:
        self.experiment = SimpleNamespace(
            experiment_id="1", name=name, tags=dict(tags), lifecycle_stage="active"
        )
        return "1"

    def set_experiment_tag(self, _: str, key: str, value: str) -> None:
        if self.deaf and key.startswith(saved_views.TAG):
            raise RuntimeError("no such feature")
        assert len(value) <= 20_000
        self.experiment.tags[key] = value

    def search_runs(self, _: list[str], condition: str, **_more: Any) -> Page:
        wanted = re.findall(r"tags\.`([^`]+)` = '([^']*)'", condition)
        return Page(
            run for run in self.runs.values() if all(run.data.tags.get(key) == value for key, value in wanted)
        )

    def create_run(self, _: str, *, start_time: int, tags: Mapping[str, str], run_name: str) -> Any:
        run_id = f"r{next(self.numbers)}"
        info = SimpleNamespace(run_id=run_id, run_name=run_name, start_time=start_time, status="RUNNING")
        data = SimpleNamespace(tags=dict(tags), params={}, metrics={})
        self.runs[run_id] = SimpleNamespace(info=info, data=data)
        self.calls.append(("create_run", run_id))
        return self.runs[run_id]

    def studies(self) -> list[Any]:
        return [run for run in self.runs.values() if run.data.tags["autotune.role"] == "study"]

    def get_run(self, run_id: str) -> Any:
        return self.runs[run_id]

    def log_batch(
        self, run_id: str, *, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: bool
    ) -> None:
        assert synchronous
        assert len(metrics) <= 1000
        assert len(params) + len(tags) <= 100
        run = self.runs[run_id]
        run.data.metrics |= {m.key: m.value for m in metrics}
        run.data.params |= {p.key: p.value for p in params}
        run.data.tags |= {t.key: t.value for t in tags}
        run.info.run_name = run.data.tags.get("mlflow.runName", run.info.run_name)
        self.calls.append(("log_batch", run_id))

    def update_run(self, run_id: str, *, status: str = "", name: str = "") -> None:
        run = self.runs[run_id]
        run.info.run_name = name or run.info.run_name
        self.calls.append(("update_run", run_id))

    def set_terminated(self, run_id: str, *, status: str, end_time: int) -> None:
        self.runs[run_id].info.status = status
        self.calls.append(("set_terminated", run_id))

    def log_text(self, run_id: str, text: str, name: str) -> None:
        self.calls.append(("log_text", run_id))


def sink_of(client: Client, uri: str = "sqlite:////nowhere/mlflow.db") -> MlflowSink:
    sink = MlflowSink(uri)
    metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # noqa: E731
    pair = lambda key, value: SimpleNamespace(key=key, value=value)  # noqa: E731
    sink._connection.client, sink._connection.version = client, "3.17.2"
    sink._connection.entities = SimpleNamespace(Metric=metric, Param=pair, RunTag=pair)
    return sink


def until(study: Study, number: int) -> Study:
    return replace(study, trials=study.trials[: number + 1], stopped="")


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_trial_takes_three_calls_whether_it_is_the_fastest_so_far_or_not(client: Client) -> None:
    study = report_study.made(24)
    sink = sink_of(client)
    sink.send("study_began", {"wall_s": 1.0}, until(study, -1))
    for trial in study.trials:
        client.calls.clear()
        sink.send("trial_ended", {"wall_s": 2.0, "number": trial.number}, until(study, trial.number))
        assert [name for name, _ in client.calls] == ["create_run", "log_batch", "set_terminated"]
        assert "r0" not in {run for _, run in client.calls}, "the study's own run waits for the end"
    assert any(t.failure for t in study.trials), "also those that failed"


def test_the_curve_of_the_best_so_far_is_sent_at_the_end_in_one_call(client: Client) -> None:
    study = report_study.made(24)
    sink = sink_of(client)
    batches: list[Any] = []
    whole = client.log_batch
    client.log_batch = lambda run, **more: (batches.append((run, more)), whole(run, **more))  # type: ignore[method-assign]
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    curves = [
        [(m.step, m.value) for m in more.get("metrics", ()) if m.key == "best_so_far_speedup"]
        for run, more in batches
        if run == "r0"
    ]
    (curve,) = [points for points in curves if points]
    steps, values = zip(*curve, strict=True)
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == study.finished()[-1].number, "here it ends"
    assert list(values[:-1]) == sorted(set(values[:-1])), "where it rises, and no more"
    assert 2 <= len(values) < 12
    assert values[-1] == max(values)


def test_a_view_of_another_time_is_offered_by_no_version_that_was_not_looked_at(client: Client) -> None:
    study = report_study.made(8)
    sink_of(client).send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    later = sink_of(client)
    assert set(later.find(study)) == {"answer", "table", "charts"}
    later = sink_of(client)
    later._connection.version = "3.99.0"
    assert set(later.find(study)) == {"answer"}


def test_searches_of_another_script_of_that_name_are_kept_apart(client: Client) -> None:
    def searched(place: str, label: str, hours: int) -> Study:
        study = report_study.made(8)
        given = replace(
            study.spec, script=f"{place}/train.py", cwd=place, label=label, study_id=f"{label:0>26}"
        )
        return replace(study, spec=given, created=study.created + 3600 * hours)

    mine = [searched("/alice/vision", "one", 0), searched("/alice/vision", "two", 2)]
    other = searched("/bob/speech", "odd", 1)
    for study in (mine[0], other):
        sink = sink_of(client)
        sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
        assert "searches" not in sink.paths(), "each was searched once"
    sink = sink_of(client)
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, mine[1], answer(mine[1]))
    assert "searches" in sink.paths()
    note = client.experiment.tags["mlflow.note.content"]
    assert "| [two](#/" in note
    assert "| [one](#/" in note
    assert "odd" not in note
    view_of = {
        s.spec.label: saved_views.TAG + saved_views.searches_id(record.script_id(s)) for s in (*mine, other)
    }
    state = saved_views.decode_view(client.experiment.tags[view_of["two"]])
    tagged = {r.data.tags["autotune.label"]: r.data.tags["autotune.script"] for r in client.studies()}
    assert f"tags.`autotune.script` = '{tagged['one']}'" in state["searchFilter"]
    assert tagged["one"] == tagged["two"] != tagged["odd"]
    assert not any(place in str(tagged) for place in ("alice", "bob", "train")), "no path in clear"
    assert view_of["odd"] not in client.experiment.tags
    assert "searches" in sink_of(client).find(mine[0])
    assert "searches" not in sink_of(client).find(other)

    sink_of(client).send("study_ended", {"wall_s": 3.0, "why": "finished"}, other, answer(other))
    assert client.experiment.tags["mlflow.note.content"] == note, (
        "sent late, it changes nothing of the newest"
    )


@pytest.mark.slow
def test_a_study_of_five_hundred_trials_stays_readable(client: Client) -> None:
    study = report_study.made(470)
    found = answer(study)
    sink = sink_of(client)
    sink.send("study_began", {"wall_s": 1.0}, until(study, -1))
    for number in range(len(study.trials)):
        # The whole study: what a trial's run holds does not depend on those behind it.
        sink.send("trial_ended", {"wall_s": 2.0, "number": number}, replace(study, stopped=""))
    client.calls.clear()
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, found)
    assert len(study.trials) >= 500
    assert len(client.runs) == len(study.trials) + 1
    renamed = sum(name == "update_run" for name, _ in client.calls)
    batches = sum(name == "log_batch" for name, _ in client.calls)
    assert renamed < 10
    assert batches < 60, "only what was confirmed, picked, or is on the front is written again"
    note = client.runs["r0"].data.tags["mlflow.note.content"]
    assert len(note) < 5000
    assert note.splitlines()[0].startswith(f"## {found.best.speedup.value:.2f}x faster [")
    assert note.splitlines()[1].startswith("**Apply:** `autotune apply best.yaml")
    ordered = sorted(client.runs.values(), key=lambda run: -run.data.metrics.get("speedup", 0.0))
    top = [run.info.run_name.split()[0] for run in ordered[:4]]
    assert "BEST" in top[:2]
    assert "SAFE" in top
    assert len(client.experiment.tags[saved_views.TAG + saved_views.view_id(study)]) < 3000


def test_what_made_the_machine_busy_has_a_tag(client: Client) -> None:
    ffmpeg = Culprit(name="ffmpeg", pid=4711, cores=1.0)
    study = replace(report_study.made(8), busy=(MachineLoad(foreign_cores=1.0, cpus=2, culprits=(ffmpeg,)),))
    sink_of(client).send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    tags = client.runs["r0"].data.tags
    assert tags["autotune.busy"] == 'The machine was busy: "ffmpeg" (pid 4711) used 1.0 of 2 cores.'


def test_advice_on_the_code_has_a_tag_and_its_part_of_the_note(client: Client) -> None:
    study = report_study.made(8)
    hint = Advice(
        kind="log",
        file="train.py",
        line=9,
        part="search",
        text="print() of 'MY_KEY=canary-01' in every step.",
    )
    assert study.facts is not None
    study = replace(study, facts=replace(study.facts, advice=(hint,)))
    sink = sink_of(client)
    sink._connection.clean = lambda text: text.replace("canary-01", "<redacted>")
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    tags = client.runs["r0"].data.tags
    reported = "train.py:9: print() of 'MY_KEY=<redacted>' in every step."
    assert tags["autotune.advice"] == reported
    assert f"### In your own code\n\n- {reported}\n" in tags["mlflow.note.content"]


def test_views_that_fail_harm_nothing(client: Client) -> None:
    study = report_study.made(8)
    client.deaf = True
    sink = sink_of(client)
    sink.send("study_began", {"wall_s": 1.0}, until(study, -1))
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    assert set(sink.paths()) == {"answer"}, "no link to a view that is not there"
    assert client.runs["r0"].info.status == "FINISHED"
    assert not any(key.startswith(saved_views.TAG) for key in client.experiment.tags)
    first = f"{answer(study).best.speedup.value:.2f}x faster: "
    assert client.experiment.tags["mlflow.note.content"].startswith(first), "no heading: it would be cut"


@pytest.mark.mlflow
def test_of_a_server_its_own_version_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow.utils.rest_utils")
    requested: list[str] = []

    def answers(host: Any, endpoint: str, method: str) -> Any:
        requested.append(f"{method} {host.host}{endpoint}")
        return SimpleNamespace(status_code=200, text="2.9.0")

    monkeypatch.setattr("mlflow.utils.rest_utils.http_request", answers)
    sink = sink_of(client, "http://tracker:5000")
    study = report_study.made(8)
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    assert requested == ["GET http://tracker:5000/version"], "once"
    assert set(sink.paths()) == {"answer"}
