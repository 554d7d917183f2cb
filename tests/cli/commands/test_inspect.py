"""`inspect` runs the script once and says what it saw; a failure never hides what the source reports."""

import json

import pytest
from study_fakes import facts

from autotune.driver import inspect_run
from autotune.errors import BackendError, StoreError
from autotune.launch.fake import FakeRunner, World
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, FailureKind
from autotune.store import paths

SOURCE = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=8)
p.add_argument("--api-key", default="x")
p.add_argument("--amp", action="store_true")
p.parse_args()
"""


class Runs(FakeRunner):
    """Remembers what it was requested to run, and may end otherwise than its world says."""

    world_now = World(name="good", batch=64)
    failure: Failure | None = None

    def __init__(self, *, study_dir, isolation):
        super().__init__(self.world_now)
        assert study_dir.is_dir()

    def run(self, assignment):
        self.requested.append(assignment)
        for ended in super().run(assignment):
            yield (
                ended
                if self.failure is None
                else type(ended)(trial=0, outcome=self.failure, seconds=1.0, facts=ended.facts)
            )


@pytest.fixture(autouse=True)
def runs(monkeypatch, tmp_path):
    import autotune.inspection.host as host
    import autotune.launch.workspace.isolation as enclosure

    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(host, "host_facts", lambda: facts().host)
    monkeypatch.setattr(enclosure, "examined", lambda *_: enclosure.Isolation("redirect"))
    monkeypatch.setattr(inspect_run, "verify", lambda command: None)
    monkeypatch.setattr(inspect_run, "LocalRunner", Runs)
    monkeypatch.setattr(Runs, "requested", [], raising=False)
    return Runs


@pytest.fixture
def written(script):
    script.write_text(SOURCE)
    return script


def reported(cli, *words):
    code, out, err = cli("inspect", "train.py", "--json", *words)
    data = json.loads(out)
    assert data["exit"] == code
    return data, err


def test_one_short_run_unchanged_reports_the_parts_and_the_value_of_every_knob(cli, written, runs):
    data, err = reported(cli, "--limit", "30s", "--", "--batch-size", "64", "--api-key", "hunter2-hunter2")
    (assignment,) = runs.requested
    assert assignment.launch.argv[:2] == ("--batch-size", "64")
    assert assignment.launch.protect, "its writes are kept off the user's files"
    assert assignment.segments[0].config.is_baseline
    assert assignment.segments[0].fidelity.deadline_s == 30.0
    assert "running train.py for its first steps, for at most 30s" in err
    run = data["run"]
    assert (run["loader"]["batch_size"], run["optimizer"]["name"]) == (64, "AdamW")
    assert {"framework", "model", "loss", "step", "throughput"} <= set(run)
    flags = {flag["names"][0]: flag for flag in data["flags"]}
    assert (flags["--batch-size"]["default"], flags["--batch-size"]["value"]) == (8, 64)
    assert "hunter2" not in json.dumps(data)
    rows = {row["knob"]: row for row in data["knobs"]}
    assert (rows["batch_size"]["value"], rows["batch_size"]["tunable"]) == (64, True)
    assert rows["batch_size"]["how"] == "flag --batch-size"
    assert 128 in rows["effective_batch"]["values"]
    assert not rows["tf32"]["tunable"]
    assert rows["tf32"]["why"]
    assert data["space"]["name"]


def test_nothing_of_the_run_is_left_and_no_study_is_made(cli, written):
    assert cli("inspect", "train.py")[0] == 0
    assert list((paths.home() / "studies").iterdir()) == []


def test_the_screen_has_the_parts_above_the_knobs(cli, written):
    code, out, _err = cli("inspect", "train.py", "--", "--amp")
    assert code == 0
    head, _, knobs = out.partition("\n\n")
    keys = [line.split()[0] for line in head.splitlines()]
    assert keys[:8] == ["script", "options", "framework", "loader", "model", "optimizer", "loss", "step"]
    assert knobs.splitlines()[0].split() == ["KNOB", "VALUE", "TRY", "EFFECT", "HOW"]
    assert "batches of 64" in head
    assert "1 backward pass for an optimizer step" in head


def test_static_runs_nothing_and_takes_arguments_as_well(cli, written, runs):
    data, err = reported(cli, "--static", "--", "--batch-size", "16")
    assert (runs.requested, err, data["run"], data["static"]) == ([], "", None, True)
    assert data["flags"][0]["value"] == 16
    assert all(row["value"] is None for row in data["knobs"])


def test_a_script_that_fails_before_its_first_step_ends_with_3_its_error_and_what_its_source_says(
    cli, written, runs, monkeypatch
):
    monkeypatch.setattr(runs, "world_now", World(name="broken", broken=True))
    data, err = reported(cli)
    assert (data["exit"], data["run"]) == (3, None)
    assert data["error"]["kind"] == "ScriptError"
    assert "RuntimeError: the fake script is broken" in data["error"]["message"]
    assert (data["knobs"], data["flags"][0]["names"]) == ([], ["--batch-size"])
    assert "train.py fails unchanged" in err
    code, out, err = cli("inspect", "train.py")
    assert (code, err.count("error:")) == (3, 1)
    assert [line.split()[0] for line in out.splitlines()][:3] == ["script", "options", "framework"]
    assert "KNOB" not in out, "nothing was seen that a knob could be judged by"


def test_a_run_that_makes_no_step_in_time_is_reported_with_the_limit(cli, written, runs, monkeypatch):
    monkeypatch.setattr(runs, "world_now", World(name="slow", startup_s=90.0))
    ending = Failure(kind=FailureKind.TIMEOUT_PROGRESS, message="no step for 20 s (before the first step)")
    monkeypatch.setattr(runs, "failure", ending)
    data, _err = reported(cli, "--limit", "20s")
    assert data["exit"] == 3
    assert "--limit" in data["error"]["hint"]


def test_a_run_that_was_seen_needs_no_figure(cli, written, runs, monkeypatch):
    ending = Failure(kind=FailureKind.WARMUP_SHORT, message="the script ended after 5 steps")
    monkeypatch.setattr(runs, "failure", ending)
    data, _err = reported(cli)
    assert (data["exit"], data["run"]["throughput"]) == (0, None)
    assert "no rate could be measured: the script ended after 5 steps" in data["notes"]


def test_one_that_breaks_after_its_first_steps_is_shown_and_ends_with_3(cli, written, runs, monkeypatch):
    ending = Failure(
        kind=FailureKind.CRASH_EXIT, message="ValueError: bad batch (in training, after 9 steps)"
    )
    monkeypatch.setattr(runs, "failure", ending)
    data, _err = reported(cli)
    assert (data["exit"], data["run"]["loader"]["batch_size"]) == (3, 64)
    assert "bad batch" in data["error"]["message"]


@pytest.mark.parametrize(
    ("where", "error", "code"),
    [
        ("verify", BackendError("train.py imports torch, and python has none"), 6),
        ("make_study_dir", StoreError("the study directory cannot be made"), 5),
    ],
)
def test_what_cannot_be_run_leaves_what_the_source_says(cli, written, runs, monkeypatch, where, error, code):
    def refuse(_given):
        raise error

    monkeypatch.setattr(inspect_run, where, refuse)
    data, err = reported(cli)
    assert (data["exit"], runs.requested) == (code, [])
    assert data["error"]["message"] == error.message
    assert error.message in err
    assert (data["knobs"], data["flags"][0]["names"]) == ([], ["--batch-size"])


@pytest.mark.parametrize(
    ("limit", "word"), [("2s", "at least 5s"), ("60", "has no unit"), ("soon", "no dur")]
)
def test_a_limit_that_is_none_is_refused_before_anything_runs(cli, written, runs, limit, word):
    data, err = reported(cli, "--limit", limit)
    assert (data["exit"], runs.requested) == (2, [])
    assert word in err


@pytest.mark.parametrize(("why", "code"), [("interrupted", 130), ("signal", 75)])
@pytest.mark.parametrize("kind", [FailureKind.KILLED_USER, FailureKind.INFRA_LOST, FailureKind.CRASH_SIGNAL])
def test_a_run_that_is_stopped_ends_as_a_search_would(cli, written, runs, monkeypatch, why, code, kind):
    from contextlib import contextmanager

    @contextmanager
    def pressed(stop):
        stop(why)
        yield

    ending = Failure(kind=kind, message="ended by request, or by the same signal")
    monkeypatch.setattr(runs, "failure", ending)
    monkeypatch.setattr(inspect_run, "polite_ending", pressed)
    monkeypatch.setattr(runs, "world_now", World(name="broken", broken=True))
    data, _err = reported(cli)
    assert data["exit"] == code
    assert "was stopped before its first step" in data["error"]["message"]


def test_what_is_looked_at_is_a_measurement_where_the_run_was_long_enough(written):
    from autotune.inspection.command_line import read_command

    found = inspect_run.look(read_command(["train.py"]), limit_s=60.0)
    assert isinstance(found.measured, Measurement)
    assert found.facts.run is not None
