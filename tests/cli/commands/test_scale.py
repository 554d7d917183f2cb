"""`autotune scale`: its screen, its JSON, its report and what it refuses, without processes."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inline_search import inline
from study_fakes import changes_of, good_answer, pick, ratio, spec, study

from autotune.driver.scaling import read_scaled
from autotune.export.best_config import write_best
from autotune.launch.fake import COMPUTE_BOUND, FAILS_IN_BASELINE
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.rank_figures import RankFigures
from autotune.store.journal import Journal
from autotune.store.paths import find_study, studies

if TYPE_CHECKING:
    from autotune.launch.runner import TrialResult
    from autotune.model.trial import Assignment

# A step of the world takes 2 ms and 2 ms for each of its 32 samples: 485 a second.
WORLD = replace(COMPUTE_BOUND, gains={"processes": {2: 0.55, 4: 0.5}}, process_noise=0.002)
COMMAND = ("--", "torchrun", "--nproc-per-node", "4", "train.py", "--lr", "0.1")


@pytest.fixture
def ran(monkeypatch, script):
    return inline(monkeypatch, WORLD)


def reported(out):
    return json.loads(out)


def test_a_run_of_each_number_is_started_by_the_commands_own_launcher(cli, ran):
    code, out, err = cli("scale", "--rounds", "3", *COMMAND)
    assert code == 0, out + err
    assert [a.launch.ranks for a in ran] == [1, 1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert {a.launch.env["WORLD_SIZE"] for a in ran if a.launch.ranks == 2} == {"2"}
    assert {a.launch.argv for a in ran} == {("--lr", "0.1")}
    assert out.startswith("command  torchrun --nproc-per-node 4 train.py --lr 0.1\n")
    assert "The knee is at 2 processes" in out
    assert "per million" not in out
    assert "nothing faster" not in err
    assert "round 3 | processes=4 | " in err


def test_the_object_has_efficiency_and_cost_with_intervals(cli, ran):
    code, out, _ = cli("scale", "--rounds", "4", "--price", "3.6", "--json", "--quiet", *COMMAND)
    data = reported(out)
    assert (code, data["exit"], data["schema"]) == (0, 0, "autotune.scale/v1")
    assert (data["knee"], data["fastest"], data["rounds"]) == (2, 4, 4)
    first, second, _ = data["points"]
    speedup = second["throughput"]["value"] / first["throughput"]["value"]
    assert second["efficiency"]["value"] == pytest.approx(speedup / 2, rel=0.01)
    assert second["efficiency"]["low"] < second["efficiency"]["value"] < second["efficiency"]["high"]
    assert second["cost_per_million_samples"]["value"] == pytest.approx(2e3 / second["throughput"]["value"])


def test_the_numbers_that_are_named_are_measured(cli, ran):
    code, _, err = cli("scale", "--rounds", "1", "--processes", "3, 1", "--", "python", "train.py")
    assert code == 0, err
    assert [a.launch.ranks for a in ran] == [1, 1, 3]


def test_values_of_a_file_are_carried_out_at_every_number(cli, ran, script):
    given = spec(script=str(script), args=(), cwd=str(script.parent), out="", version="0.0.1")
    found = pick("best", Config({"precision": "bf16"}), ratio(2.0), effect=Effect.NUMERIC)
    answer = good_answer(best=found, safe=pick("safe", Config(), ratio(1.0), trial=0), front=())
    write_best(script.parent / "best.yaml", study(spec=given), answer, changes_of)
    words = ("scale", "--config", "best.yaml", "--rounds", "1", "--processes", "1,2", "--json")
    code, out, err = cli(*words, "--", "python", "train.py")
    assert code == 0, err
    knobs = reported(out)["knobs"]
    assert knobs == {"precision": "bf16"}
    assert all({c.knob: c.value for c in a.launch.changes} == knobs for a in ran)


def test_it_is_shown_listed_and_reported_and_is_no_search(cli, ran, tmp_path):
    cli("scale", "--rounds", "2", "--quiet", *COMMAND)
    label = studies()[0].label
    assert label.startswith("scale-train-")
    shown = cli("show")
    assert shown[0] == 0
    assert "efficiency" in shown[1]
    assert shown[1].endswith("\n")
    assert reported(cli("show", "--json")[1])["points"][1]["processes"] == 2
    assert "knee 2, cheapest 1" in cli("list")[1]
    assert cli("report", "--out", "page.html")[0] == 0
    assert "Throughput by number of processes" in (tmp_path / "page.html").read_text()
    assert reported(cli("report", "--json")[1])["knee"] == 2
    assert cli("report", "--md")[0] == 2
    for words in (("resume", label), ("export", label, "--as", "argv")):
        assert cli(*words)[0] == 2


def test_what_was_stopped_continues_with_the_same_question(cli, monkeypatch, script):
    def at(number):
        if number == 3:
            signal.raise_signal(signal.SIGTERM)

    ran = inline(monkeypatch, WORLD, before=at)
    code, out, _ = cli("scale", "--rounds", "2", *COMMAND)
    assert code == 75
    label = studies()[0].label
    assert f"autotune scale --resume {label}" in out
    code, out, err = cli("scale", "--resume", label, "--budget", "30m", "--rounds", "3", "--json")
    assert code == 0, err
    assert reported(out)["rounds"] == 3
    assert [a.launch.ranks for a in ran[3:]].count(1) == 2, "its run of the first round is not run again"


def test_a_number_at_which_it_fails_is_reported_and_the_others_are_measured(cli, monkeypatch, script):
    inline(monkeypatch, replace(WORLD, crashes=frozenset({("processes", 4)})))
    code, out, _ = cli("scale", "--rounds", "2", *COMMAND)
    assert code == 0
    assert "note     4 processes: " in out
    found = read_scaled(find_study(None)).scaling
    assert [p.throughput is not None for p in found.points] == [True, True, False]


def test_a_script_that_fails_by_itself_ends_with_3(cli, monkeypatch, script):
    inline(monkeypatch, FAILS_IN_BASELINE)
    assert cli("scale", *COMMAND)[0] == 3


def test_a_script_that_starts_its_own_processes_is_refused_after_one_run(cli, monkeypatch, script):
    def spawned(ended: TrialResult, assignment: Assignment) -> TrialResult:
        figures = [
            RankFigures(rank=k, device="cpu", steps=9, samples_per_step=8, input_wait_frac=0) for k in (0, 1)
        ]
        return replace(ended, outcome=replace(ended.outcome, ranks=tuple(figures)))

    ran = inline(monkeypatch, WORLD, change=spawned)
    code, _, err = cli("scale", "--processes", "1,2", "--", "python", "train.py")
    assert (code, len(ran)) == (2, 1)
    assert "train.py starts 2 processes by itself" in err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "no script is given"),
        (("--", "python", "train.py"), "starts one process"),
        (("--", "torchrun", "--nnodes", "2", "train.py"), "several machines, and autotune scale runs on one"),
        (("--processes", "1", *COMMAND), "'1' is not a list of at least two numbers"),
        (("--processes", "2,2", *COMMAND), "not a list of at least two numbers"),
        (("--processes", "0,2", *COMMAND), "not a list"),
        (("--processes", "1,two", *COMMAND), "not a list"),
        (("--processes", "1,99999999", *COMMAND), "not a list"),
        (("--rounds", "0", *COMMAND), "--rounds"),
        (("--price", "-1", *COMMAND), "--price"),
        (("--budget", "soon", *COMMAND), "soon"),
        (("--", "torchrun", "--nproc-per-node", "2", "gone.py"), "gone.py"),
        (("--config", "gone.yaml", *COMMAND), "gone.yaml"),
        (("--resume", "gone"), "there is no study"),
        (("--resume", "gone", "--processes", "1,2"), "--resume continues"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(cli, ran, argv, text):
    code, _, err = cli("scale", *argv)
    assert code in (2, 5)
    assert text in err
    assert ran == []
    assert "error" in json.loads(cli("scale", "--json", *argv)[1])


def test_a_search_is_no_measurement_to_resume(cli, ran, script):
    import journaled

    journaled.journaled(script, label="train-1121-1002", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B")
    code, _, err = cli("scale", "--resume", "train-1121-1002")
    assert code == 5
    assert "does not record which numbers" in err


def test_a_store_that_does_not_answer_leaves_the_figures_and_a_warning(cli, ran, monkeypatch):
    from autotune.errors import TrackerUnavailable

    def refuse(found, uri):
        raise TrackerUnavailable(f"{uri} does not answer")

    monkeypatch.setattr("autotune.driver.sinks.scaling_sync.send_scaling", refuse)
    code, out, err = cli("scale", "--rounds", "1", "--tracking-uri", "http://127.0.0.1:9", *COMMAND)
    assert code == 0
    assert "warning: http://127.0.0.1:9 does not answer" in err
    assert "autotune sync scale-train-" in err
    assert "efficiency" in out


def test_nothing_of_it_waits_for_mlflow(cli, ran):
    cli("scale", "--rounds", "1", *COMMAND)
    with Journal.read(find_study(None) / "journal.db") as opened:
        assert opened.pending("mlflow") == []


@pytest.mark.mlflow
def test_figures_are_one_run_with_the_number_of_processes_as_step(cli, ran, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code, out, err = cli(
        "scale", "--rounds", "2", "--price", "3.6", "--tracking-uri", uri, "--json", *COMMAND
    )
    assert code == 0, err
    data = reported(out)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("autotune/train")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in data["mlflow"]
    assert run.data.tags["autotune.role"] == "scaling"
    points = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "throughput")}
    measured = {p["processes"]: p["throughput"]["value"] for p in data["points"]}
    assert points == pytest.approx(measured, rel=1e-3)
    assert {a.path for a in client.list_artifacts(run.info.run_id)} == {"report.html", "scaling.json"}
    assert cli("sync", "--tracking-uri", uri)[0] == 0
    assert len(client.search_runs([experiment.experiment_id])) == 1, "a repeat replaces it"
