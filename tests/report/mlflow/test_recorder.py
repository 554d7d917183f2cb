"""One study is one run with one run below it per trial, however often and late it is sent."""

from __future__ import annotations

import json
import logging
import math
import shutil
import socket
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pages
import pytest

from autotune.errors import TrackerUnavailable
from autotune.model.study import Study
from autotune.model.wire import to_wire
from autotune.report.html.page import report_html
from autotune.report.mlflow import artifacts as files
from autotune.report.mlflow import run_content as record
from autotune.report.mlflow import saved_views, store
from autotune.report.mlflow.recorder import MlflowSink, Refused
from autotune.text.redact import redact

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
import made_studies as made

real = pytest.mark.mlflow


def test_the_pareto_picture_is_well_formed_and_needs_no_network() -> None:
    svg = files.pareto_svg(made.study(script="/w/a<b>&.py"), made.found())
    root = ET.fromstring(svg)
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 6, "one per measured trial"
    assert "href" not in svg
    assert ">best</text>" in svg
    ET.fromstring(files.pareto_svg(made.study(outcomes=()), made.no_gain()))


def test_a_relative_store_is_the_same_from_everywhere() -> None:
    assert store.absolute_uri("sqlite:///a/b.db", "/w") == "sqlite:////w/a/b.db"
    for same in ("sqlite:////a.db", "http://h:5000", "sqlite:///:memory:"):
        assert store.absolute_uri(same, "/w") == same
    assert store.sqlite_path("sqlite:////a/b.db?x=1") == Path("/a/b.db")
    assert store.sqlite_path("http://h") is None


def test_thinning_keeps_both_ends() -> None:
    kept = record.thinned(range(5000), 300)
    assert (len(kept), kept[0], kept[-1]) == (300, 0, 4999)
    assert record.thinned([1, 2], 300) == [1, 2]


def test_every_trial_is_in_the_table_as_strict_json() -> None:
    rows = json.loads(files.trials_json(made.study()), parse_constant=pytest.fail)["trials"]
    assert [r["name"] for r in rows][2:4] == ["t02 num_workers=2", "t03 precision=bf16 num_workers=2"]
    assert rows[4]["trial"]["outcome"]["kind"] == "OOM_HOST"


# -- with the real MLflow -------------------------------------------------------------------------


def with_a_view(*names: str) -> tuple[str, ...]:
    """These pages where the MLflow that is installed draws a view, none where it is given none."""
    return names if saved_views.is_tested(version("mlflow")) else ()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store: making one takes seven seconds, copying it none."""
    return made.migrated_store(tmp_path_factory.getbasetemp())


@pytest.fixture
def uri(template: Path, tmp_path: Path) -> str:
    shutil.copy(template, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def client(uri: str) -> Iterator[Any]:
    return pytest.importorskip("mlflow").MlflowClient(tracking_uri=uri)


def send_all(sink: MlflowSink, study: Study, answer: Any, *, best_yaml: str = "picks: {}\n") -> None:
    sink.send("study_began", {"wall_s": made.WALL_S}, study)
    for trial in study.finished():
        sink.send(
            "trial_ended", {"wall_s": made.WALL_S + 12 * (trial.number + 1), "number": trial.number}, study
        )
    sink.send("study_ended", {"wall_s": made.WALL_S + 100, "why": "x", "best_yaml": best_yaml}, study, answer)


def everything(client: Any) -> tuple[list[Any], list[Any], Any]:
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if r.data.tags["autotune.role"] == "study"]
    children = [r for r in runs if r.data.tags["autotune.role"] == "trial"]
    return parents, sorted(children, key=lambda r: r.data.tags["autotune.trial_uid"]), experiment


@real
def test_a_study_becomes_one_run_with_one_below_it_per_trial(uri: str, client: Any, tmp_path: Path) -> None:
    study, answer = made.study(), made.found()
    sink = MlflowSink(uri)
    send_all(sink, study, answer)
    (parent,), children, experiment = everything(client)
    assert experiment.name == "autotune/train"
    assert experiment.tags["mlflow.note.content"].startswith(
        "2.41x faster: precision=bf16 num_workers=2 (safe pick 1.30x)\n"
    )
    assert experiment.artifact_location == f"file://{tmp_path}/mlartifacts/autotune-train"
    assert (
        parent.info.run_name == "2.41x [2.34, 2.48] · precision=bf16 num_workers=2 · autotune apply best.yaml"
    )
    assert parent.info.status == "FINISHED"
    assert (parent.info.start_time, parent.info.end_time) == (1_700_000_000_000, 1_700_000_100_000)
    assert parent.data.params["precision"] == "bf16"
    assert parent.data.params["batch_size"] == "64"
    figures = {"speedup": 2.41, "speedup_ci_low": 2.34, "safe_speedup": 1.3, "trials": 7, "trials_failed": 1}
    assert {k: parent.data.metrics[k] for k in figures} == figures
    assert parent.data.tags["mlflow.note.content"].startswith("## 2.41x faster [2.34, 2.48]")
    assert parent.data.tags["autotune.apply"].startswith("autotune apply best.yaml -- python train.py")
    curve = client.get_metric_history(parent.info.run_id, "best_so_far_speedup")
    rises = [(0, 1.0), (1, 1.01), (2, 1.287), (3, 2.387), (6, 2.4)]
    assert [(p.step, p.value) for p in curve] == rises, "where it rises, and no more"

    assert len(children) == 7
    assert {c.data.tags["mlflow.parentRunId"] for c in children} == {parent.info.run_id}
    names = [c.info.run_name for c in children]
    assert names[:5] == [
        "baseline t00 precision=fp32 batch_size=64 num_workers=0",
        "baseline t01 precision=fp32 batch_size=64 num_workers=0",
        "SAFE t02 num_workers=2",
        "BEST t03 precision=bf16 num_workers=2",
        "t04 batch_size=4096",
    ]
    assert [c.info.status for c in children] == ["FINISHED"] * 4 + ["FAILED"] + ["FINISHED"] * 2
    best, oom = children[3], children[4]
    assert best.data.params == {
        "precision": "bf16",
        "batch_size": "64",
        "num_workers": "2",
        "pin_memory": "false",
    }
    assert best.data.metrics["throughput_samples_s"] == 241.1
    assert best.data.metrics["single_run_speedup"] == 2.387
    reported = {"speedup": 2.41, "speedup_ci_low": 2.34, "speedup_ci_high": 2.48}
    assert {k: best.data.metrics[k] for k in reported} == reported
    assert best.data.tags["autotune.loss"] == "pass"
    confirmed = [c.data.metrics.get("speedup") for c in children]
    assert confirmed == [1.0, None, 1.3, 2.41, None, None, None], "single runs claim nothing"
    assert best.data.metrics["peak_mem_gib"] == 2.0
    assert best.info.end_time - best.info.start_time == 10_000
    assert len(client.get_metric_history(best.info.run_id, "loss")) == 5
    assert (best.data.tags["autotune.pick"], best.data.tags["autotune.pareto"]) == ("best", "true")
    assert oom.data.tags["autotune.kind"] == "oom_host"
    assert oom.data.tags["autotune.status"] == "oom"
    assert oom.data.tags["autotune.reason"] == "used 25.1 GiB of 24.0 GiB"
    assert "single_run_speedup" not in oom.data.metrics
    assert {a.path for a in client.list_artifacts(oom.info.run_id)} == {"log_tail.txt"}

    files = {a.path for a in client.list_artifacts(parent.info.run_id)}
    pages = {"report.html", "report.md"}
    assert files == {*pages, "trials.json", "front.json", "front.csv", "pareto.svg", "best.yaml", "failed"}
    where = Path(client.download_artifacts(parent.info.run_id, ""))
    assert (where / "best.yaml").read_text() == "picks: {}\n"
    assert "MemoryError" in (where / "failed" / "t04-oom_host.log").read_text()

    assert sink.links() == {"answer": "autotune ui"}
    assert set(sink.paths()) == {"answer", *with_a_view("table", "charts")}
    assert all("workflowType=machine_learning" in path for path in sink.paths().values())
    tag = experiment.tags.get(f"mlflow.sharedViewState.autotune-{made.STUDY_ID}")
    assert (tag is not None) == bool(with_a_view("table"))
    assert tag is None or saved_views.decode_view(tag) == saved_views.view_state(study, answer)


@real
def test_sending_it_all_again_changes_nothing(uri: str, client: Any) -> None:
    study, answer = made.study(), made.found()
    send_all(MlflowSink(uri), study, answer)

    def seen() -> Any:
        parents, children, experiment = everything(client)
        runs = [*parents, *children]
        history = [
            (r.info.run_id, key, m.step, m.timestamp, m.value)
            for r in runs
            for key in sorted(r.data.metrics)
            for m in client.get_metric_history(r.info.run_id, key)
        ]
        return [r.to_dictionary() for r in runs], sorted(history), experiment.tags

    first = seen()
    send_all(MlflowSink(uri), study, answer)
    assert seen() == first
    assert len(first[0]) == 8


@real
def test_a_run_left_half_written_is_found_again_and_filled(uri: str, client: Any) -> None:
    study = made.study()
    sink = MlflowSink(uri)
    sink.send("study_began", {"wall_s": made.WALL_S}, study)
    whole = sink._connection.client.log_batch

    def die(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    sink._connection.client.log_batch = die
    with pytest.raises(KeyboardInterrupt):
        sink.send("trial_ended", {"wall_s": made.WALL_S + 36, "number": 2}, study)
    sink._connection.client.log_batch = whole
    (_, children, _) = everything(client)
    assert [c.data.params for c in children] == [{}]
    MlflowSink(uri).send("trial_ended", {"wall_s": made.WALL_S + 36, "number": 2}, study)
    (_, children, _) = everything(client)
    assert [c.data.params["num_workers"] for c in children] == ["2"]
    assert [c.info.status for c in children] == ["FINISHED"]


@real
def test_an_inconclusive_search_is_tagged_with_its_outcome_and_the_command_that_continues_it(
    uri: str, client: Any
) -> None:
    answer = made.inconclusive()
    send_all(MlflowSink(uri), made.study(), answer)
    (parent,), children, _ = everything(client)
    tags = parent.data.tags
    assert (tags["autotune.status"], tags["autotune.outcome"]) == ("inconclusive", "inconclusive")
    assert tags["autotune.resume"] == answer.resume
    assert "autotune.apply" not in tags
    (likely,) = [c for c in children if c.info.run_id == tags["autotune.likely_run_id"]]
    assert likely.info.run_name.startswith("LIKELY t03")
    assert parent.data.metrics["likely_speedup"] == 2.18
    assert parent.data.metrics["speedup"] == 1.0
    send_all(MlflowSink(uri), made.study(), made.found())
    (parent,), _, _ = everything(client)
    assert (parent.data.tags["autotune.outcome"], parent.data.tags["autotune.resume"]) == ("faster", "")


@real
def test_a_resumed_search_goes_on_in_the_same_run(uri: str, client: Any) -> None:
    early = made.study(stopped="interrupted", outcomes=made.OUTCOMES[:3])
    send_all(MlflowSink(uri), early, made.no_gain())
    assert everything(client)[0][0].info.status == "KILLED"
    sink = MlflowSink(uri)
    sink.send(
        "study_began", {"wall_s": made.WALL_S + 500}, made.study(stopped="", outcomes=made.OUTCOMES[:3])
    )
    (parent,) = everything(client)[0]
    assert parent.info.status == "RUNNING"
    assert parent.info.run_name.startswith("searching...")
    send_all(sink, made.study(), made.found())
    (parent,), children, _ = everything(client)
    assert (parent.info.status, len(children)) == ("FINISHED", 7)
    assert parent.data.params["precision"] == "fp32", "MLflow never changes a parameter"
    assert parent.data.tags["autotune.newer.precision"] == "bf16"
    assert parent.data.tags["autotune.status"] == "found"


@real
def test_a_script_that_fails_by_itself_makes_a_failed_run(uri: str, client: Any) -> None:
    outcomes = ((made.Stage.BASELINE, made.Config(), made.OOM),)
    study = made.study(stopped="no_baseline", outcomes=outcomes)
    send_all(MlflowSink(uri), study, None, best_yaml="")
    (parent,), (child,), _ = everything(client)
    assert (parent.info.status, parent.info.run_name) == ("FAILED", "baseline failed · train")
    assert child.info.status == "FAILED"
    assert {a.path for a in client.list_artifacts(parent.info.run_id)} == {
        "report.html",
        "report.md",
        "trials.json",
        "failed",
    }


def test_the_report_is_sent_whole_where_an_argument_was_a_secret() -> None:
    study, answer = made.study(args=("--hf-token", "<redacted>", "--password", "<redacted>")), made.found()
    page = MlflowSink("sqlite:///x.db", clean=redact)._artifacts({}, study, answer)["report.html"]
    assert page == report_html(study, answer)
    assert pages.data(page)["study"]["command"].endswith("--hf-token '<redacted>' --password '<redacted>'")


@real
def test_nothing_is_sent_that_was_not_cleaned(
    uri: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "canary-0123456789")
    study = made.study(args=("--x", "canary-0123456789"))
    send_all(MlflowSink(uri, clean=redact), study, made.found(), best_yaml="canary-0123456789")
    # Also what lies in pages of the database that are no longer in use.
    everywhere = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert len(everywhere) > 5
    assert [f.name for f in everywhere if b"canary" in f.read_bytes()] == []


@real
def test_what_is_not_finite_is_left_out(uri: str, client: Any) -> None:
    odd = made.replace(
        made.measured(100.0), throughput=made.estimate(200.0, width=math.inf), startup_s=math.nan
    )
    study = made.study(outcomes=(*made.OUTCOMES[:1], (*made.OUTCOMES[2][:2], odd)), stopped="")
    sink = MlflowSink(uri)
    sink.send("trial_ended", {"wall_s": made.WALL_S, "number": 1}, study)
    (_, (child,), _) = everything(client)
    assert child.data.metrics["single_run_speedup"] == 2.0
    assert "startup_seconds" not in child.data.metrics


@real
def test_a_long_note_is_cut_and_kept_whole_as_an_artifact(uri: str, client: Any) -> None:
    answer = made.replace(made.found(), caveats=tuple(f"Caveat {i}: {'x' * 200}." for i in range(60)))
    send_all(MlflowSink(uri), made.study(), answer)
    (parent,) = everything(client)[0]
    assert len(parent.data.tags["mlflow.note.content"]) < 5000
    assert parent.data.tags["mlflow.note.content"].endswith("artifact `report.md`.\n")
    linked = "[every trial in a table](#/experiments/" in parent.data.tags["mlflow.note.content"]
    assert linked == bool(with_a_view("table"))
    report = Path(client.download_artifacts(parent.info.run_id, "report.md")).read_text()
    assert "Caveat 59" in report


@real
def test_an_unknown_version_of_mlflow_gets_no_view_and_plain_links(uri: str, client: Any) -> None:
    sink = MlflowSink(uri)
    sink.open()
    sink._connection.version = "9.0.0"
    send_all(sink, made.study(), made.found())
    assert set(sink.paths()) == {"answer"}
    assert not any("sharedViewState" in key for key in everything(client)[2].tags)


@real
def test_a_closed_port_is_noticed_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    sink = MlflowSink(f"http://user:pw@127.0.0.1:{port}")
    begun = time.monotonic()
    with pytest.raises(
        TrackerUnavailable, match=rf"MLflow at http://127\.0\.0\.1:{port} cannot be reached"
    ) as caught:
        sink.open()
    assert time.monotonic() - begun < 10
    assert "user:" not in caught.value.message
    assert not isinstance(caught.value, Refused)


@real
def test_a_record_that_makes_no_sense_is_refused_rather_than_tried_for_ever(uri: str) -> None:
    with pytest.raises(Refused):
        MlflowSink(uri).send("trial_ended", {"wall_s": 0.0, "number": 77}, made.study())


@real
def test_opening_a_new_store_leaves_other_loggers_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = logging.getLogger("made.for.this.test")
    handlers = list(logging.getLogger().handlers)
    MlflowSink(f"sqlite:///{tmp_path / 'sub' / 'new.db'}").open()
    assert (tmp_path / "sub" / "new.db").is_file()
    assert not mine.disabled
    assert logging.getLogger().handlers == handlers
    assert capfd.readouterr() == ("", ""), "nothing is message about tables"


@real
def test_the_installed_ui_still_knows_the_words_of_the_saved_view() -> None:
    module = pytest.importorskip("mlflow")
    if tuple(map(int, module.__version__.split(".")[:2])) < saved_views.TESTED[0]:
        pytest.skip(f"the page of MLflow {module.__version__} stays empty with a view, so none is written")
    assert saved_views.is_tested(module.__version__), (
        "a version that nobody has looked at: see docs/mlflow.md"
    )
    bundle = Path(module.__file__).parent / "server" / "js" / "build" / "static" / "js"
    if not bundle.is_dir():
        pytest.skip("this installation has no user interface")
    words = {saved_views.TAG, "viewStateShareKey", "deflate;", "columnOrder", "runsHiddenMode", "SHOW_ALL"}
    words |= {"compareRunCharts", "metricSectionId", "selectedMetricKeys", "machine_learning"}
    for script in bundle.glob("*.js"):
        text = script.read_text(errors="replace")
        words = {word for word in words if word not in text}
    assert words == set()


@real
def test_the_front_is_an_artifact_that_reads_back(uri: str, client: Any) -> None:
    send_all(MlflowSink(uri), made.study(), made.found())
    (parent,) = everything(client)[0]
    front = json.loads(Path(client.download_artifacts(parent.info.run_id, "front.json")).read_text())
    assert front == to_wire(made.found().front)


@real
def test_a_second_search_adds_itself_and_both_stand_side_by_side(uri: str, client: Any) -> None:
    first = made.study(study_id="01JD0000000000000000000000", label="first")
    first = made.replace(first, created=first.created - 1000)
    second, answer = made.study(label="second"), made.found()
    send_all(MlflowSink(uri), first, made.no_gain())
    before = {r.info.run_id: r.to_dictionary() for r in [*everything(client)[0], *everything(client)[1]]}
    sink = MlflowSink(uri)
    send_all(sink, second, answer)
    parents, children, experiment = everything(client)
    assert (len(parents), len(children)) == (2, 14)
    after = {r.info.run_id: r.to_dictionary() for r in [*parents, *children]}
    assert {run: after[run] for run in before} == before, "nothing of the first is touched"
    note = experiment.tags["mlflow.note.content"]
    assert note.startswith("2.41x faster")
    assert note.index("| [second](#/") < note.index("| [first](#/")
    assert set(sink.paths()) == {"answer", *with_a_view("table", "charts", "searches")}
    if with_a_view("searches"):
        state = saved_views.decode_view(
            experiment.tags[saved_views.TAG + saved_views.searches_id(record.script_id(second))]
        )
        assert "params.`precision`" in state["selectedColumns"], "what they differ in is a column"
        assert "params.`script`" not in state["selectedColumns"]

    send_all(MlflowSink(uri), first, made.no_gain())
    late = everything(client)[2].tags["mlflow.note.content"]
    assert late == note, "an old search that is sent again does not take the first line"


@real
def test_a_study_is_nested_below_a_run_of_the_user_with_tags_of_the_user(uri: str, client: Any) -> None:
    experiment = client.create_experiment("mine")
    above = client.create_run(experiment)
    study = made.study()
    study = replace(
        study,
        spec=replace(
            study.spec, mlflow_parent_run=above.info.run_id, mlflow_tags=("team=vision", "note=a=b")
        ),
    )
    sink = MlflowSink(uri)
    send_all(sink, study, made.found())
    runs = client.search_runs([experiment])
    (parent,) = [r for r in runs if r.data.tags.get("autotune.role") == "study"]
    assert parent.data.tags["mlflow.parentRunId"] == above.info.run_id
    assert (parent.data.tags["team"], parent.data.tags["note"]) == ("vision", "a=b")
    assert client.get_experiment_by_name("autotune/train") is None
    assert MlflowSink(uri).find(study)["answer"].startswith(f"/#/experiments/{experiment}/runs/")


@real
def test_a_trials_run_has_a_note_with_its_configuration_and_result(uri: str, client: Any) -> None:
    send_all(MlflowSink(uri), made.study(), made.found())
    children = everything(client)[1]
    text = children[3].data.tags["mlflow.note.content"]
    assert text.startswith("**precision=bf16 num_workers=2**")
    assert "2.39x" in text
    assert "--trial 3" in text
    assert "failed: out of host memory" in children[4].data.tags["mlflow.note.content"]
