"""`autotune search`: everything is checked before anything runs; one answer on stdout."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from cli_fakes import ended
from environments import environment
from study_fakes import good_answer, no_answer

from autotune.model.trial import StartPolicy

REST = ("--budget", "10m", "--driver", "inline")


def test_a_script_and_its_arguments_reach_the_driver(cli, script, tune):
    code, _out, _err = cli(
        "search", "--script", "train.py", *REST, "--", "--lr", "1e-3", "--budget", "7", "--", "x"
    )
    (spec,) = tune.specs
    assert code == 0
    assert spec.script == str(script)
    assert spec.args == ("--lr", "1e-3", "--budget", "7", "--", "x")
    assert spec.python == sys.executable
    assert (spec.cwd, spec.out) == (str(script.parent), str(script.parent / "best.yaml"))
    assert spec.budget.seconds == 600.0


@pytest.mark.parametrize("words", [["python", "train.py"], ["train.py"], ["python3", "./train.py"]])
def test_a_whole_command_means_the_same(cli, script, tune, words):
    cli("search", *REST, "--", *words, "--lr", "1", "--json")
    (spec,) = tune.specs
    assert (spec.script, spec.args) == (str(script), ("--lr", "1", "--json"))


def test_the_named_interpreter_is_kept_with_its_links(cli, script, tune):
    link = script.parent / "python"
    link.symlink_to(sys.executable)
    cli("search", *REST, "--", "./python", "train.py")
    assert tune.specs[0].python == str(link)


def test_options_reach_the_spec(cli, script, tune):
    cli(
        "search", "--script", "train.py", *REST, "--space", "quick", "--set", "num_workers=0,2",
        "--fix", "pin_memory=true",
        "--max-memory", "2GiB", "--effective-batch", "16..64",
        "--trials", "9", "--seed", "3", "--run-steps", "500",
        "--tracking-uri", "http://x", "--experiment", "e",
        "--sampler", "tpe", "--transfer", "off", "--concurrency", "2", "--keep-loggers", "--start", "fork",
        "--label", "mine", "--out", "sub.yaml", "--output-arg", "--out-dir",
        "--wait-for-quiet", "10m", "--wait", "30m", "--share",
    )  # fmt: skip
    (spec,) = tune.specs
    assert spec.space.knobs["num_workers"] == (0, 2)
    assert spec.space.fixed == {"pin_memory": True}
    assert (spec.max_memory_bytes, spec.effective_batch, spec.budget.trials) == (2 * 1024**3, "16..64", 9)
    assert (spec.seed, spec.run_steps, spec.tracking_uri, spec.experiment) == (3, 500, "http://x", "e")
    assert (spec.sampler, spec.concurrency, spec.keep_loggers, spec.label) == ("tpe", 2, True, "mine")
    assert spec.transfer == "off"
    assert spec.start is StartPolicy.FORK
    assert spec.out.endswith("/sub.yaml")
    assert spec.output_args == ("--out-dir",)
    assert spec.wait_for_quiet_s == 600.0
    assert (spec.wait_s, spec.share, spec.longest_wait_s) == (1800.0, True, 1800.0)
    assert spec.version


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--script", "trian.py"], "there is no script trian.py", 'Did you mean "train.py"?'),
        (["--script", "no/train.py"], "there is no script", "there is no folder"),
        (["--script", "."], "is a folder", "train.py"),
        ([], "no script is given", "--script"),
        (["--", "python"], "no script follows", "train.py"),
        (["--", "python", "-m", "pkg.train"], "finds no module pkg", "--python"),
        (["--", "torchrun", "--nnodes=2", "train.py"], "on several machines", "search on a Ray cluster"),
        (["--", "A=1", "python", "train.py"], "'A=1' is not a script", "set A before autotune"),
        (["--", "./python9", "train.py"], "no interpreter", ""),
        (["--script", "train.py", "--budget", "2"], '"2" has no unit', "2s"),
        (["--script", "train.py", "--budget", "abc"], "no duration", "90m"),
        (["--script", "train.py", "--budget", "5s"], "too short", "10m"),
        (["--script", "train.py", "--driver", "rya"], "--driver", 'Did you mean "ray"?'),
        (["--script", "train.py", "--sampler", "grid"], "--sampler", "staged"),
        (["--script", "train.py", "--start", "warm"], "--start", "auto, fork, cold"),
        (["--script", "train.py", "--wait-for-quiet", "10"], "--wait-for-quiet", "10s"),
        (["--script", "train.py", "--wait", "soon"], '--wait: "soon" is no duration', "90m"),
        (["--script", "train.py", "--effective-batch", "64..16"], "holds no batch", "64..1024"),
        (["--script", "train.py", "--effective-batch", "kep"], "not known", '"keep"'),
        (["--script", "train.py", "--max-memory", "6"], "has no unit", "GiB"),
        (["--script", "train.py", "--trials", "0"], "--trials 0 is not positive", ""),
        (["--script", "train.py", "--run-steps", "-1"], "--run-steps -1", ""),
        (["--script", "train.py", "--price-per-hour", "-1"], "--price-per-hour -1", ""),
        (["--script", "train.py", "--profile", "--trials", "3"], "--trials leaves no room", "--budget"),
        (["--script", "train.py", "--concurrency", "-1"], "negative", "0"),
        (["--script", "train.py", "--address", "a:1"], "--driver is inline", "leave one"),
        (["--script", "\udcff.py"], "is not UTF-8 text", "rename it"),
        (["--script", "train.py", "--", "--name", "\udcff"], "'\\udcff' is not UTF-8 text", ""),
        (["--", "python", "train.py", "--name=\udcff"], "is not UTF-8 text", ""),
        (["--script", "train.py", "--out", "no/best.yaml"], "there is no folder", ""),
        (["--script", "train.py", "--out", "."], "is a folder", "best.yaml"),
        (["--script", "train.py", "--out", "/dev/null"], "is not a regular file", "--out best.yaml"),
        (["--script", "train.py", "--out", "/dev/stdout"], "is not a regular file", "--json"),
        (["--script", "train.py", "--out", "a\nb.yaml"], "cannot be printed", "another name"),
        (["--script", "train.py", "--out", "\udcff.yaml"], "cannot be printed", "another name"),
        (["--script", "train.py", "--label", "../x"], "is no label", "letters"),
        (["--script", "train.py", "--output-arg", "out"], "is not an option of a script", "with its dashes"),
        (["--script", "train.py", "--python", "./python9"], "there is no interpreter ./python9", ""),
        (["--script", "train.py", "--space", "qiuck"], "qiuck", "quick"),
        (["--script", "train.py", "--knob", "num_worker"], "num_worker", "num_workers"),
        (["--script", "train.py", "--set", "num_workers"], "num_workers", "="),
    ],
)
def test_what_cannot_be_carried_out_ends_with_2_before_anything_runs(cli, script, tune, argv, message, hint):
    given = list(REST) if "--budget" not in argv else ["--driver", "inline"]
    code, out, err = cli("search", *given, *argv)
    assert (code, out, tune.specs) == (2, "", [])
    assert message in err
    assert hint in err
    assert "Traceback" not in err


def test_a_folder_that_is_no_utf8_text_ends_with_2(cli, tune, tmp_path, monkeypatch):
    folder = tmp_path / "\udcff"
    folder.mkdir()
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    code, _out, err = cli("search", "--script", "train.py", *REST)
    assert (code, tune.specs) == (2, [])
    assert "is not UTF-8 text" in err


def test_a_name_with_a_line_break_is_searched_like_any_other(cli, script, tune):
    script.rename(script.parent / "a\nb.py")
    code, out, _err = cli("search", "--script", "a\nb.py", *REST)
    assert code == 0
    assert "-- python 'a\nb.py'" in out


def test_the_answer_is_on_stdout_and_progress_on_stderr(cli, script, tune):
    _code, out, err = cli("search", "--script", "train.py", *REST)
    assert out.startswith(
        "Faster: 2.00x [1.95, 2.05] in 6 pairs of fresh runs; training differs by rounding only.\n"
    )
    assert "autotune apply best.yaml -- python train.py" in out
    assert err.startswith("study train-")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_answer_is_reported_even_where_the_process_is_ended_by_force(cli, script, tune, more, monkeypatch):
    """As from the thread that ends it: Ray's loop, which hangs, has taken stdout away."""

    def hangs(spec, *, last_words, **others):
        with Path(os.devnull).open("w") as null, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", null)
            last_words(ended(spec))
        raise KeyboardInterrupt

    tune.run_search = hangs
    _code, out, _err = cli("search", "--script", "train.py", *REST, *more)
    if more:
        assert json.JSONDecoder().raw_decode(out)[0]["picks"]["best"]["speedup"]["value"] == 2.0
    else:
        assert out.startswith("Faster: 2.00x")


def test_quiet_leaves_the_answer_only(cli, script, tune):
    _code, out, err = cli("search", "--script", "train.py", *REST, "--quiet")
    assert err == ""
    assert out.startswith("Faster")


def test_a_stopped_search_says_how_to_go_on(cli, script, tune):
    tune.end = lambda spec: ended(spec, code=130)
    assert "autotune resume mine" in cli("search", "--script", "train.py", *REST, "--label", "mine")[1]


FIELDS = {
    "schema", "study", "pick", "is_better", "effective_batch", "objective", "baseline", "picks", "pareto",
    "outcome", "unsettled",
    "environment", "provenance", "sentence", "caveats", "failures", "refusals", "links", "unsent", "out",
    "study_dir", "exit", "bottleneck", "energy", "cost", "advice", "profiles", "nsys_reports",
}  # fmt: skip


@pytest.mark.parametrize(("answer", "code"), [(good_answer(), 0), (no_answer(), 1)])
def test_json_is_one_object_with_the_fields_of_the_file(cli, script, tune, answer, code):
    from autotune.export.best_config import BestConfig

    tune.end = lambda spec: ended(spec, answer=answer, code=code, unsent=4)
    got, out, _err = cli("search", "--script", "train.py", *REST, "--json", "--quiet")
    data = json.loads(out)
    assert got == data["exit"] == code
    assert data["schema"] == "autotune.result/v1"
    assert set(data) == (FIELDS if answer.is_better else {*FIELDS, "closest"})
    assert data["unsent"] == 4
    assert data["links"] == {"MLflow": "http://127.0.0.1:5000"}
    known = {key: data[key] for key in FIELDS & {f.alias or n for n, f in BestConfig.model_fields.items()}}
    best = BestConfig.model_validate({**known, "schema": "autotune.config/v1.1"})
    assert best.picks["best"].speedup.value == answer.best.speedup.value


def test_json_reports_an_error_as_an_object_too(cli, script, tune):
    code, out, err = cli("search", "--script", "trian.py", *REST, "--json")
    data = json.loads(out)
    assert (code, data["exit"], data["error"]["kind"]) == (2, 2, "UsageError")
    assert data["error"]["hint"] == 'Did you mean "train.py"?'
    assert err.startswith("error: there is no script")


def test_a_dry_run_runs_nothing_and_shows_the_plan(cli, script, tune):
    tune.end = lambda spec: pytest.fail("it ran")
    code, out, _err = cli("search", "--script", "train.py", *REST, "--dry-run")
    assert code == 0
    assert "num_workers" in out
    assert "tf32" in out
    assert "There is no GPU." in out
    assert "at most 3 configurations" in out
    code, out, _err = cli("search", "--script", "train.py", *REST, "--dry-run", "--json")
    assert json.loads(out)["knobs"]["num_workers"] == {
        "values": [0, 2, 4],
        "effect": "EXACT",
        "how": "keyword",
    }


def test_a_dry_run_says_the_order_and_how_the_budget_is_shared_out(cli, script, tune):
    words = ("search", "--script", "train.py", *REST, "--dry-run")
    out = cli(*words)[1]
    assert "\norder   your unchanged script (2 runs), start points and single changes, the most" in out
    assert "\nbudget  10 min; the first run ends after 7 min at most; once a candidate" in out
    assert " 2 rounds of script and finalists are reserved, " in out
    assert "up to 5 rounds within 4 min; the rest explores\n" in out
    out = cli(*words, "--sampler", "tpe", "--trials", "20")[1]
    assert "\norder   your unchanged script (2 runs), draws of tpe, confirmation in pairs" in out
    assert "\ntrials  20: at most 14 before confirmation\n" in out
    assert json.loads(cli(*words, "--json")[1])["course"] == {
        "stages": ["baseline", "initial", "refine", "confirm", "ablate"],
        "baseline_runs": 2,
        "first_run_s_at_most": 420.0,
        "rounds_kept": 2,
        "rounds_kept_at_most": 5,
        "more_rounds_within_s": 240.0,
        "trials_before_confirming_at_most": None,
    }


def test_python_that_is_not_on_the_path_means_this_one(cli, script, tune, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    cli("search", *REST, "--", "python", "train.py")
    assert tune.specs[0].python == sys.executable


def test_a_module_reaches_the_driver_as_one(cli, script, tune):
    package = script.parent / "package"
    package.mkdir()
    (package / "train.py").write_text("")
    code, _out, err = cli("search", *REST, "--", "python", "-um", "package.train", "--lr", "1")
    (spec,) = tune.specs
    assert code == 0, err
    assert (spec.module, spec.options, spec.args) == ("package.train", ("-u",), ("--lr", "1"))
    assert (spec.script, spec.label[:13]) == (str(package / "train.py"), "package-train")


def test_another_interpreter_is_reported_before_anything_runs(cli, script, tune):
    python = environment(script.parent / "env")
    words = ("search", "--script", "train.py", *REST, "--python", "env/bin/python")
    _code, out, err = cli(*words)
    assert tune.specs[0].python == str(python)
    assert err.startswith(f"train.py is run by {python} (Python 3.")
    assert f"-- {python} train.py" in out
    assert cli(*words, "--dry-run")[1].startswith(f"train.py is run by {python}")


@pytest.mark.parametrize(
    ("text", "message", "expected"),
    [
        ("import torch\n", "train.py imports torch, and", 6),
        ("import math\n", "", 0),
    ],
)
def test_an_interpreter_without_torch_ends_with_6_where_it_is_needed(
    cli, script, tune, text, message, expected
):
    environment(script.parent / "env")
    script.write_text(text)
    code, _out, err = cli("search", "--script", "train.py", *REST, "--python", "env")
    assert code == expected
    assert message in err


def test_jsonl_is_a_line_per_event_and_the_result_in_the_last(cli, script, tune):
    code, out, _err = cli("search", "--script", "train.py", *REST, "--jsonl", "--quiet")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("event") for row in rows] == ["study_began", "study_ended", None]
    assert (rows[-1]["schema"], rows[-1]["exit"], code) == ("autotune.result/v1", 0, 0)
    tune.end = lambda spec: pytest.fail("it ran")
    _code, out, _err = cli("search", "--script", "trian.py", *REST, "--jsonl")
    assert json.loads(out)["error"]["kind"] == "UsageError"
