"""What a study costs MLflow in calls, told by a client that only counts them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import report_study

from autotune.core.pick import answer
from autotune.core.study import Study
from autotune.report import view
from autotune.report.mlflow import MlflowSink


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
        if self.deaf and key.startswith(view.TAG):
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


def sink_of(client: Client) -> MlflowSink:
    sink = MlflowSink("sqlite:////nowhere/mlflow.db")
    metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # noqa: E731
    pair = lambda key, value: SimpleNamespace(key=key, value=value)  # noqa: E731
    sink._client, sink._version = client, "3.17.2"
    sink._entities = SimpleNamespace(Metric=metric, Param=pair, RunTag=pair)
    return sink


def until(study: Study, number: int) -> Study:
    return replace(study, trials=study.trials[: number + 1], stopped="")


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_trial_takes_three_calls_and_a_faster_one_a_fourth(client: Client) -> None:
    study = report_study.made(24)
    sink = sink_of(client)
    sink.send("study_began", {"wall_s": 1.0}, until(study, -1))
    most, risen = 0.0, 0
    for trial in study.trials:
        client.calls.clear()
        sink.send("trial_ended", {"wall_s": 2.0, "number": trial.number}, until(study, trial.number))
        mine = [name for name, run in client.calls if run != "r0"]
        assert mine == ["create_run", "log_batch", "set_terminated"]
        rise = client.runs["r0"].data.metrics.get("best_so_far_speedup", 0.0) > most
        most = client.runs["r0"].data.metrics.get("best_so_far_speedup", 0.0)
        risen += rise
        assert len(client.calls) - len(mine) == rise
    assert 2 <= risen < 10
    assert "speedup" not in client.runs["r0"].data.metrics, "nothing is confirmed while it searches"
    assert client.runs["r0"].info.run_name.startswith("searching... best 3.")
    assert any(t.failure for t in study.trials), "also those that failed"


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
    assert len(client.experiment.tags[view.TAG + view.view_id(study)]) < 3000


def test_views_that_fail_harm_nothing(client: Client) -> None:
    study = report_study.made(8)
    client.deaf = True
    sink = sink_of(client)
    sink.send("study_began", {"wall_s": 1.0}, until(study, -1))
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    assert set(sink.paths()) == {"answer"}, "no link to a view that is not there"
    assert client.runs["r0"].info.status == "FINISHED"
    assert not any(key.startswith(view.TAG) for key in client.experiment.tags)
    first = f"{answer(study).best.speedup.value:.2f}x faster: "
    assert client.experiment.tags["mlflow.note.content"].startswith(first), "no heading: it would be cut"


@pytest.mark.mlflow
def test_of_a_server_its_own_version_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow.utils.rest_utils")
    asked: list[str] = []

    def answers(host: Any, endpoint: str, method: str) -> Any:
        asked.append(f"{method} {host.host}{endpoint}")
        return SimpleNamespace(status_code=200, text="2.9.0")

    monkeypatch.setattr("mlflow.utils.rest_utils.http_request", answers)
    sink = sink_of(client)
    sink.tracking_uri = "http://tracker:5000"
    study = report_study.made(8)
    sink.send("study_ended", {"wall_s": 3.0, "why": "finished"}, study, answer(study))
    assert asked == ["GET http://tracker:5000/version"], "once"
    assert set(sink.paths()) == {"answer"}
