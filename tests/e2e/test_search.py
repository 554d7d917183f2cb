"""The command from outside: real processes, real PyTorch, real MLflow, and once a real Ray."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.timeout(400)]

GRACE_S = 20.0


class Ended:
    """One finished command: exit code, both streams, wall time, and the folder it ran in."""

    def __init__(self, done, seconds, folder):
        self.exit = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        self.seconds = seconds
        self.folder = folder

    @property
    def report(self):
        return json.loads(self.out)

    @property
    def best(self):
        return yaml.safe_load((self.folder / "best.yaml").read_text())

    def __repr__(self):
        return f"exit {self.exit} after {self.seconds:.0f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def autotune(folder, *words, timeout_s=350):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
    )
    return Ended(done, time.monotonic() - began, folder)


@pytest.fixture
def search(tmp_path, scripts):
    """Search on a copy of one of the small scripts: `search("plain_loop.py", "--budget", "40s", ...)`."""

    def run(name, *words, driver="inline"):
        shutil.copy(scripts / name, tmp_path / name)
        return autotune(tmp_path, "search", "--driver", driver, *words, "--script", name)

    return run


def failures(ended):
    """Failure label -> how many trials ended so, from the study's own record."""
    shown = autotune(ended.folder, "show", "--json")
    assert shown.exit == 0, shown
    return shown.report["failures"]


def test_a_search_ends_within_its_budget_and_writes_what_apply_can_run(search):
    ended = search("plain_loop.py", "--budget", "80s", "--json")
    assert ended.exit in (0, 1), ended
    assert ended.seconds < 80 + GRACE_S, ended
    assert ended.report["exit"] == ended.exit
    best = ended.best
    assert best["schema"].startswith("autotune.config/v1")
    assert {"safe", "best"} <= set(best["picks"])
    if ended.exit == 0:
        assert best["picks"]["best"]["speedup"]["low"] > 1.0
    else:
        assert best["picks"]["best"]["changes"] == []
    applied = autotune(
        ended.folder, "apply", "best.yaml", "--", sys.executable, "plain_loop.py", "--epochs", "2"
    )
    assert applied.exit == 0, applied
    assert "epoch 1 loss" in applied.out


def test_an_out_of_memory_is_named_and_the_rest_is_searched(search):
    ended = search(
        "oom_above.py",
        "--budget",
        "100s",
        "--trials",
        "8",
        "--effective-batch",
        "8..128",
        "--set",
        "batch_size=8,16,128",
        "--set",
        "effective_batch=16,128",
        "--knob",
        "threads",
    )
    assert ended.exit in (0, 1), ended
    assert "oom_host" in failures(ended)
    assert ended.best["picks"]["best"]["knobs"].get("batch_size") != 128


@pytest.mark.slow
def test_a_crash_in_bf16_is_named_and_bf16_is_not_picked(search):
    ended = search(
        "crash_on_bf16.py", "--budget", "90s", "--trials", "8", "--set", "precision=bf16", "--knob", "threads"
    )
    assert ended.exit in (0, 1), ended
    assert "crash_exit" in failures(ended)
    assert ended.best["picks"]["best"]["knobs"].get("precision") != "bf16"


def test_a_loss_that_turns_nan_is_named_and_not_picked(search):
    ended = search(
        "nan_on_bf16.py", "--budget", "90s", "--trials", "8", "--set", "precision=bf16", "--knob", "threads"
    )
    assert ended.exit in (0, 1), ended
    assert "diverged" in failures(ended)
    assert ended.best["picks"]["best"]["knobs"].get("precision") != "bf16"


def test_a_hang_in_loader_workers_ends_in_time_and_is_named(search):
    ended = search("hang_on_workers.py", "--budget", "110s", "--trials", "6", "--set", "num_workers=0,2")
    assert ended.exit in (0, 1), ended
    assert ended.seconds < 110 + GRACE_S, ended
    assert {"timeout_progress", "timeout_total"} & set(failures(ended))
    assert ended.best["picks"]["best"]["knobs"].get("num_workers") != 2


def test_a_script_that_ends_before_anything_can_be_measured_is_told_so(search):
    ended = search("ends_early.py", "--budget", "60s")
    assert ended.exit == 3, ended
    assert "Traceback" not in ended.err
    assert "step" in ended.err


def test_a_script_that_fails_by_itself_shows_its_last_lines(search):
    ended = search("fails_always.py", "--budget", "60s")
    assert ended.exit == 3, ended
    assert "weights-that-nobody-has.pt" in ended.err
    assert ended.seconds < 60


def everything_below(folder):
    """Path -> content of every file, and folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def test_nothing_a_trial_writes_changes_the_users_files(tmp_path, scripts):
    user = tmp_path / "user"
    user.mkdir()
    shutil.copy(scripts / "writes_everywhere.py", user)
    (user / "old.ckpt").write_text("keep me\n")
    (user / "model.pt").write_text("mine\n")
    (user / "history.log").write_text("yesterday\n")
    absolute = tmp_path / "absolute"
    before = everything_below(user)
    answers = tmp_path / "answers"
    answers.mkdir()
    ended = autotune(
        user,
        "search",
        "--driver",
        "inline",
        "--budget",
        "30s",
        "--trials",
        "3",
        "--out",
        str(answers / "best.yaml"),
        "--script",
        "writes_everywhere.py",
        "--",
        "--out",
        str(absolute),
    )
    assert ended.exit in (0, 1), ended
    assert everything_below(user) == before
    assert not absolute.exists()


def test_a_killed_search_goes_on_where_it_stopped(tmp_path, scripts):
    shutil.copy(scripts / "plain_loop.py", tmp_path)
    words = ["search", "--driver", "inline", "--budget", "10m", "--script", "plain_loop.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = wait_for_told(at_least=2, limit_s=60)
    finally:
        process.kill()
        process.wait()
    resumed = autotune(tmp_path, "resume", "--budget", "45s", "--json")
    assert resumed.exit in (0, 1), resumed
    shown = autotune(tmp_path, "show", "--json").report
    numbers = [trial["number"] for trial in shown["trials"]]
    assert len(numbers) == len(set(numbers))
    assert set(told) <= set(numbers)
    assert (tmp_path / "best.yaml").exists()


def wait_for_told(*, at_least, limit_s):
    """Numbers of finished trials, as soon as there are enough; read from the journal of a living search."""
    from autotune.store.journal import Journal

    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for path in Path(os.environ["AUTOTUNE_HOME"]).glob("studies/*/journal.db"):
            told = [entry.data["number"] for entry in Journal.read(path).entries() if entry.kind == "told"]
            if len(told) >= at_least:
                return told
        time.sleep(0.5)
    pytest.fail(f"fewer than {at_least} finished trials after {limit_s} s")


def test_the_answer_is_in_mlflow_and_json_is_alone_on_stdout(search, tmp_path):
    uri = f"sqlite:///{tmp_path}/tracking.db"
    ended = search("plain_loop.py", "--budget", "75s", "--trials", "4", "--tracking-uri", uri, "--json")
    assert ended.exit in (0, 1), ended
    assert ended.report["schema"].startswith("autotune.")
    assert ended.err.strip()
    code = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow
client = mlflow.MlflowClient(sys.argv[1])
runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
print("RUNS", json.dumps([[r.info.run_name, r.info.status, r.data.tags.get("mlflow.parentRunId"),
                   r.info.run_id, r.data.tags.get("mlflow.note.content", "")] for r in runs]))
"""
    done = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RUNS "))
    runs = json.loads(line.removeprefix("RUNS "))
    parents = [run for run in runs if run[2] is None]
    assert len(parents) == 1
    children = [run for run in runs if run[2] == parents[0][3]]
    assert len(children) >= 2
    assert all(run[1] in ("FINISHED", "FAILED", "KILLED") for run in runs)
    assert parents[0][4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "60", "--script", "plain_loop.py"], "60s"),
        (["--budget", "1s", "--script", "plain_loop.py"], "budget"),
        (["--budget", "60s", "--script", "plain_lop.py"], "plain_lop.py"),
        (["--budget", "60s", "--set", "num_worker=2", "--script", "plain_loop.py"], "num_workers"),
        (["--budget", "60s", "--space", "bad.yaml", "--script", "plain_loop.py"], "bad.yaml"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_run(tmp_path, scripts, words, said):
    shutil.copy(scripts / "plain_loop.py", tmp_path)
    (tmp_path / "bad.yaml").write_text("schema: autotune.space/v1\nname: bad\nknobs:\n  num_worker: [1, 2]\n")
    ended = autotune(tmp_path, "search", "--driver", "inline", *words)
    assert ended.exit == 2, ended
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.ray
def test_ray_drives_the_same_search(search):
    ended = search("plain_loop.py", "--budget", "80s", "--trials", "4", "--json", driver="ray")
    assert ended.exit in (0, 1), ended
    assert ended.seconds < 80 + GRACE_S, ended
    assert {"safe", "best"} <= set(ended.best["picks"])
