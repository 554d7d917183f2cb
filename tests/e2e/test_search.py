"""The command from outside: real processes, real PyTorch, real MLflow, and a real Ray.

Budgets are generous and the work is bounded by the space or by `--trials`, so that a busy machine makes
these tests slower and not wrong.
"""

import json
import subprocess
import sys

import pytest
import yaml

from autotune.inspection.host import host_facts

pytestmark = [pytest.mark.torch, pytest.mark.mlflow, pytest.mark.timeout(400)]

ONE_KNOB = ("--knob", "fused_optimizer")
AS_IT_IS_AND_ONE = (*ONE_KNOB, "--trials", "3")


# A search that finds something, looked at from several sides.


def test_a_gain_that_is_there_is_found_confirmed_and_written(gain):
    assert gain.exit == 0, gain
    best = gain.best
    assert best["schema"].startswith("autotune.config/v1")
    assert best["picks"]["best"]["knobs"]["num_workers"] == 2
    assert best["picks"]["best"]["speedup"]["low"] > 1.0


def test_json_is_alone_on_stdout_and_progress_on_stderr(gain):
    assert gain.report["schema"] == "autotune.result/v1"
    assert gain.report["exit"] == gain.exit
    assert gain.report["unsent"] == 0
    assert "[baseline]" in gain.err


def test_what_was_found_runs_the_script(gain, lasting_place):
    words = ("apply", "best.yaml", "--", sys.executable, "slow_loader.py", "--epochs", "1")
    applied = lasting_place.run(*words)
    assert applied.exit == 0, applied
    assert "epoch 0 loss" in applied.out
    assert "num_workers=2" in applied.err


READ_STORE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow
client = mlflow.MlflowClient(sys.argv[1])
runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
print("RUNS", json.dumps([
    {"id": r.info.run_id, "parent": r.data.tags.get("mlflow.parentRunId"), "status": r.info.status,
     "params": r.data.params, "metrics": r.data.metrics, "note": r.data.tags.get("mlflow.note.content", "")}
    for r in runs]))
"""


def test_mlflow_holds_the_search_and_exactly_its_trials(gain, lasting_place):
    uri = f"sqlite:///{lasting_place.home}/tracking.db"
    done = subprocess.run(
        [sys.executable, "-c", READ_STORE, uri],
        capture_output=True,
        text=True,
        check=True,
        env=lasting_place.environ,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("RUNS "))
    runs = json.loads(line.removeprefix("RUNS "))
    (parent,) = [run for run in runs if run["parent"] is None]
    children = [run for run in runs if run["parent"] == parent["id"]]
    assert len(children) == len(runs) - 1
    reported = [entry for entry in lasting_place.journal() if entry.kind == "finished"]
    assert len(children) == len(reported) == len(lasting_place.show()["trials"])
    assert parent["status"] == "FINISHED"
    assert parent["note"]
    for child in children:
        assert child["status"] == "FINISHED"
        assert child["params"]
        assert any("throughput" in name for name in child["metrics"]), child["metrics"]


# A search that finds nothing.


def everything_below(folder):
    """Path -> content of every file, and folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def without_gain(new_place, tmp_path_factory):
    """A search without a gain, of a script that writes everywhere; its tracking server is away.

    Returns:
        The ended command, its place, the content of the user's folder before, and the folder named by --out.
    """
    place, outside = new_place("without-gain"), tmp_path_factory.mktemp("outside")
    named, answers = outside / "absolute", outside / "answers"
    place.script("writes_everywhere.py")
    (place.folder / "old.ckpt").write_text("keep me\n")
    (place.folder / "model.pt").write_text("mine\n")
    (place.folder / "history.log").write_text("yesterday\n")
    answers.mkdir()
    before = everything_below(place.folder)
    words = ("--tracking-uri", "http://127.0.0.1:9", "--json", "--out", str(answers / "best.yaml"))
    ended = place.search("writes_everywhere.py", *AS_IT_IS_AND_ONE, *words, "--", "--out", str(named))
    return ended, place, before, named


def test_a_tracking_server_that_is_away_changes_nothing_and_costs_no_time(without_gain):
    ended, place, _, named = without_gain
    # Three trials leave none for a confirmation, so nothing can be claimed.
    assert ended.has_no_gain, ended
    best = yaml.safe_load((named.parent / "answers" / "best.yaml").read_text())
    assert best["picks"]["best"]["changes"] == []
    assert ended.report["unsent"] > 0
    assert "autotune sync" in ended.err
    assert "Traceback" not in ended.err
    trials_s = sum(trial["seconds"] for trial in place.show()["trials"])
    assert ended.seconds < trials_s + 20


def test_nothing_a_trial_writes_changes_the_users_files(without_gain):
    _, place, before, named = without_gain
    assert everything_below(place.folder) == before
    assert not named.exists()


@pytest.mark.ray
def test_ray_drives_the_same_search(place):
    ended = place.search("slow_loader.py", *AS_IT_IS_AND_ONE, "--json", driver="ray")
    assert ended.has_no_gain, ended
    assert [trial["number"] for trial in place.show()["trials"]] == [0, 1, 2]
    assert ended.best["picks"]["best"]["changes"] == []
    assert ended.out.lstrip().startswith("{")


def test_a_dry_run_runs_nothing_and_leaves_nothing(place):
    ended = place.search("writes_everywhere.py", "--dry-run", "--json")
    assert ended.exit == 0, ended
    assert "num_workers" in ended.report["knobs"]
    assert [path.name for path in place.folder.iterdir()] == ["writes_everywhere.py"]
    assert not list(place.home.glob("studies/*"))


@pytest.fixture(scope="module")
def tried_in_source(new_place):
    """Configurations that were measured in a search whose settings are words of the source."""
    place = new_place("source")
    words = ("--knob", "batch_size", "--set", "BATCH_SIZE=32,64", "--knob", "precision")
    words += ("--set", "PRECISION=fp32,bf16", "--sampler", "coordinate", "--trials", "10")
    ended = place.search("words_in_source.py", *words)
    assert ended.exit in (0, 1, 8), ended
    return [trial["config"] for trial in place.show()["trials"] if "kind" not in trial["outcome"]]


def test_a_half_micro_batch_by_a_constant_comes_with_two_parts_that_keep_the_effective_batch(tried_in_source):
    assert {"batch_size": 32, "accumulation": 2} in tried_in_source


def test_a_precision_by_a_word_of_the_source_is_tried(tried_in_source):
    has_bf16 = bool({"avx512_bf16", "amx_bf16"} & set(host_facts().cpu_flags))
    assert ({"precision": "bf16"} in tried_in_source) is has_bf16


# Configurations that fail.


@pytest.fixture(scope="module")
def failures(new_place):
    """A search in which each of four changes fails in another way: knob -> how it ended.

    Half precision is none of them, as it may not be tried on every machine.
    """
    place = new_place("failures")
    values = ("num_workers=0,2", "threads=1", "fused_optimizer=true", "gc_control=freeze")
    words = [word for value in values for word in ("--knob", value.partition("=")[0], "--set", value)]
    words += ["--max-memory", "1.5GiB", "--sampler", "coordinate", "--start", "cold", "--trials", "16"]
    ended = place.search("fails_by_value.py", *words)
    assert ended.has_no_gain, ended
    assert ended.best["picks"]["best"]["changes"] == []
    failed = [trial for trial in place.show()["trials"] if "kind" in trial["outcome"]]
    assert all(len(trial["config"]) == 1 for trial in failed), failed
    return {next(iter(trial["config"])): trial for trial in failed}


def test_every_failure_is_named_and_none_is_picked(failures):
    kinds = {knob: trial["outcome"]["kind"] for knob, trial in failures.items()}
    assert kinds.pop("num_workers") in ("TIMEOUT_PROGRESS", "TIMEOUT_TOTAL")
    assert kinds == {"threads": "CRASH_EXIT", "fused_optimizer": "OOM_HOST", "gc_control": "DIVERGED"}


def test_more_memory_than_allowed_is_named_with_the_limit(failures):
    assert "the limit is 1.50 GiB" in failures["fused_optimizer"]["outcome"]["message"]


def test_a_hang_in_loader_workers_ends_soon(failures):
    # The floor is 20 s; the rest is a start on a busy machine.
    assert failures["num_workers"]["seconds"] < 40


@pytest.mark.slow
def test_a_memory_error_of_the_scripts_own_is_named(place):
    ended = place.search(
        "oom_above.py",
        *("--knob", "batch_size", "--set", "batch_size=16,128"),
        *("--knob", "effective_batch", "--set", "effective_batch=16,128", "--effective-batch", "8..128"),
        *("--trials", "10"),
    )
    assert ended.exit in (0, 1), ended
    assert place.show()["failures"] == {"oom_host": 1}
    assert ended.best["picks"]["best"]["knobs"].get("batch_size") != 128


# Scripts that fail as they are.


def test_a_script_of_three_steps_is_measured_and_searched(place):
    ended = place.search("ends_early.py", *AS_IT_IS_AND_ONE, budget="60s")
    assert ended.exit in (0, 1, 8), ended
    assert "Traceback" not in ended.err
    first = place.show()["trials"][0]
    assert "kind" not in first["outcome"], first


def test_a_script_of_one_step_is_refused_without_blame(place):
    ended = place.search("ends_early.py", "--", "--batch-size", "48", budget="60s")
    assert ended.exit in (2, 3), ended
    assert "ended after 1 optimizer step" in ended.err
    assert "fails" not in ended.err
    assert "Traceback" not in ended.err


def test_a_script_that_fails_by_itself_shows_its_last_lines(place):
    ended = place.search("fails_always.py", budget="60s")
    assert ended.exit == 3, ended
    assert "weights-that-nobody-has.pt" in ended.err
    assert not (place.folder / "best.yaml").exists()


# What of the user's environment a trial sees.


@pytest.mark.ray
def test_a_trial_sees_the_users_environment_and_nothing_of_the_driver(new_place):
    def seen(driver):
        where = new_place(driver)
        ended = where.search("dumps_environment.py", driver=driver, budget="60s")
        assert ended.exit == 3, ended
        (log,) = where.home.glob("studies/*/trials/*/stdout.log")
        line = next(line for line in log.read_text().splitlines() if line.startswith("ENVIRONMENT "))
        return json.loads(line.removeprefix("ENVIRONMENT "))

    inline, ray = seen("inline"), seen("ray")
    assert set(ray) == set(inline)
    # Folders of the trial itself differ: caches, temporary files, the copy of the working directory.
    differing = {name for name in ray if ray[name] != inline[name]}
    assert {name for name in differing if not own_folder(name)} == set()
    assert {name for name in ray if name.startswith("RAY_")} <= {"RAY_USAGE_STATS_ENABLED"}


def own_folder(name):
    return (
        name.startswith("AUTOTUNE_")
        or name in {"TMPDIR", "PWD", "PYTHONPATH", "TORCH_EXTENSIONS_DIR"}
        or "CACHE" in name
    )


# Bad input: one message, exit 2, and nothing is run.

HEADER = "schema: autotune.space/v1\nname: bad\nknobs:\n"


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["--budget", "60"], "", ["60s"]),
        (["--budget", "1s"], "", ["too short", "20s"]),
        (["--script", "plain_lop.py"], "", ["plain_lop.py"]),
        (["--set", "num_worker=2"], "", ["num_worker", "num_workers"]),
        ([], HEADER + "  num_worker: [1, 2]\n", ["bad.yaml:4", "num_workers"]),
        ([], HEADER + "  num_workers: [1, 2\nthreads: }\n", ["bad.yaml:5"]),
        ([], HEADER + "  threads: !!python/object/apply:os.system ['touch owned']\n", ["bad.yaml:4"]),
        ([], "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", ["bad.yaml"]),
        (["--knob", "cudnn_benchmark"], "", ["cudnn_benchmark", "NVIDIA"]),
        (["--max-memory", "lots"], "", ["lots"]),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_run(place, words, text, message):
    place.script("plain_loop.py")
    (place.folder / "bad.yaml").write_text(text)
    words = [*words, *(["--space", "bad.yaml"] if text else [])]
    words += [] if "--budget" in words else ["--budget", "60s"]
    words += [] if "--script" in words else ["--script", "plain_loop.py"]
    ended = place.run("search", "--driver", "inline", *words)
    assert ended.exit == 2, ended
    for part in message:
        assert part in ended.err, ended
    assert "Traceback" not in ended.err
    assert ended.err.startswith("error: ")
    assert sorted(path.name for path in place.folder.iterdir()) == ["bad.yaml", "plain_loop.py"]
    assert not list(place.home.glob("studies/*"))


# A knob that the user declares.

SPACE = """schema: autotune.space/v1
declare:
  - {name: save_every, effect: EXACT, values: [1, 50], flag: --save-every, help: Steps between two saves.}
"""


@pytest.mark.slow  # two minutes by itself
def test_a_declared_option_wins_and_applies_without_the_file_that_declared_it(place):
    (place.folder / "mine.yaml").write_text(SPACE)
    ended = place.search("slow_option.py", "--space", "./mine.yaml", "--json")
    assert ended.exit == 0, ended
    best = ended.best["picks"]["safe"]
    assert best["knobs"]["save_every"] == 50
    assert best["changes"][0]["spelling"] == "--save-every"
    assert any("delivered, effect not read" in reason for reason in best["reasons"])
    (place.folder / "mine.yaml").unlink()
    assert place.show()["picks"]["best"]["knobs"]["save_every"] == 50
    applied = place.run("apply", "best.yaml", "--", sys.executable, "slow_option.py", "--epochs", "1")
    assert applied.exit == 0, applied
    assert "every 50" in applied.out
