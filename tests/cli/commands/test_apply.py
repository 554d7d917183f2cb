"""`autotune apply`: the user's own command with a pick, or a clear reason why not."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from environments import environment
from hostile import TRAIN, searched
from picks import env, flag, patch
from study_fakes import changes_of, facts, good_answer, no_answer, open_answer, pick, ratio, spec, study

from autotune.export.best_config import write_best
from autotune.model.change import Change, Env, Flag, Keyword
from autotune.model.config import Config
from autotune.model.facts import ScriptFacts

FLAGS = Config({"batch_size": 64, "threads": 2})
SHOW = (
    "import argparse, sys, os, json\n"
    "p = argparse.ArgumentParser()\n"
    "p.add_argument('--batch-size', '-b', type=int)\n"
    "print(json.dumps([sys.argv[1:], os.environ.get('OMP_NUM_THREADS'), os.getcwd()]))\n"
)


@pytest.fixture
def script(script):
    """With the options that `changes_of` has."""
    script.write_text(TRAIN)
    return script


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The machine of the search, whichever this one is."""
    import autotune.inspection.host as host

    monkeypatch.setattr(host, "host_facts", lambda: facts().host)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")


@pytest.fixture
def watched():
    """What the runner watches by: the own values of the script, and whether it is strict."""
    return []


@pytest.fixture
def ran(monkeypatch, watched):
    """Launches handed to the runner, which runs nothing and ends with 7."""
    import autotune.launch.direct_run as plain

    launches, requested = [], watched

    def run_plain(launch, plan_dir, *, own, strict):
        assert plan_dir.is_dir()
        launches.append(launch)
        requested.append((own, strict))
        return 7

    monkeypatch.setattr(plain, "run_plain", run_plain)
    return launches


def written(script, answer=None, changes=None, **fields):
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    known = replace(facts(), script=ScriptFacts(path=str(script), sha256=sha256))
    done = study(spec=spec(**{"script": str(script), "cwd": str(script.parent), **fields}), facts=known)
    ways = changes_of if changes is None else lambda config: changes
    write_best(script.parent / "best.yaml", done, answer or good_answer(), ways)


def test_the_pick_reaches_the_launch_and_the_scripts_code_is_the_exit_code(cli, script, ran, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    written(script)
    code, out, err = cli("apply", "best.yaml", "--", "python", "train.py", "-b", "8", "--lr", "2")
    (launch,) = ran
    assert code == 7
    assert (out, launch.script, launch.cwd) == ("", str(script), str(script.parent))
    assert launch.argv in {("--batch-size=64", "--lr", "2"), ("-b", "64", "--lr", "2")}
    assert launch.env["OMP_NUM_THREADS"] == "2"
    assert launch.env["MINE"] == "1"
    assert "WANDB_MODE" not in launch.env
    assert [c.knob for c in launch.changes] == ["batch_size", "num_workers", "precision", "threads"]
    assert not launch.measure
    assert not launch.protect
    assert "best: " in err


def test_the_runner_gets_the_scripts_own_values_and_whether_to_be_strict(cli, script, ran, watched):
    written(script)
    cli("apply", "best.yaml", "--", "python", "train.py")
    cli("apply", "best.yaml", "--strict", "--", "python", "train.py")
    (own, strict), (again, really) = watched
    assert (strict, really) == (False, True)
    assert own == again
    assert own["batch_size"] == 32


def test_a_likely_pick_is_applied_by_name_alone_and_says_that_it_is_not_confirmed(cli, script, ran):
    written(script, open_answer())
    code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert (code, [launch.changes for launch in ran]) == (7, [()])
    assert "is your unchanged script" in err
    code, _out, err = cli("apply", "best.yaml", "--pick", "likely", "--", "python", "train.py")
    assert code == 7
    assert "precision" in [c.knob for c in ran[1].changes]
    message = "autotune: likely: 2.18x in 3 runs, not confirmed; confirm it: autotune resume train-1121-1002"
    assert message in err


@pytest.mark.parametrize("launcher", ["torchrun", "torchrun --nproc-per-node 2"])
def test_under_a_torchrun_of_ones_own_every_process_is_one_of_it(cli, script, ran, monkeypatch, launcher):
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "3")
    written(script, launcher=launcher)
    cli("apply", "best.yaml", "--pick", "safe")
    (launch,) = ran
    assert (launch.ranks, launch.env["RANK"], launch.env["WORLD_SIZE"]) == (1, "3", "3")
    code, _, err = cli("apply", "best.yaml", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert (code, len(ran)) == (2, 1)
    assert "has started this process already" in err


def test_without_a_command_the_files_own_is_run(cli, script, ran):
    written(script)
    cli("apply", "best.yaml", "--pick", "safe")
    (launch,) = ran
    assert launch.script == str(script)
    assert launch.argv == ("--lr", "1e-3")
    assert [c.spelling for c in launch.changes] == [Keyword("torch.utils.data.DataLoader", "num_workers")]


def test_without_a_command_the_script_is_found_beside_the_file(cli, script, ran, tmp_path, monkeypatch):
    written(script)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cli("apply", "../best.yaml")
    assert ran[0].script == str(script)


def test_a_script_that_was_searched_under_torchrun_gets_its_variables_again(cli, script, ran):
    written(script, launcher="torchrun")
    assert "launcher: torchrun" in Path("best.yaml").read_text()
    assert "-- torchrun train.py\n" in Path("best.yaml").read_text()
    cli("apply", "best.yaml")
    cli("apply", "best.yaml", "--", "torchrun", "--standalone", "train.py")
    cli("apply", "best.yaml", "--", "python", "train.py")
    assert [launch.env.get("LOCAL_RANK") for launch in ran] == ["0", "0", None]
    _code, out, _err = cli("apply", "best.yaml", "--print-env")
    assert "# without torchrun, whose variables" in out
    assert "torchrun" in cli("export", "best.yaml", "--as", "argv")[1]


def test_a_hidden_argument_has_to_be_reported_again(cli, script, ran):
    written(script, args=("--api-key", "canary"))
    code, _out, err = cli("apply", "best.yaml")
    assert code == 2
    assert "secret" in err
    assert ran == []


def test_learning_rate_advice_is_reported_and_nothing_is_done_about_it(cli, script, ran):
    message = "Learning rate: the effective batch is 8 times your script's, and this ran with your rate."
    known = good_answer()
    written(script, replace(known, best=replace(known.best, advice=message)))
    _code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert f"autotune: {message}" in err
    assert not any("rate" in change.knob for change in ran[0].changes)


def test_the_baseline_is_run_unchanged_and_reported_so(cli, script, ran):
    written(script, no_answer())
    _code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert ran[0].changes == ()
    assert "your unchanged script" in err


def test_a_changed_script_under_a_patch_ends_with_6_and_names_the_knobs(cli, script, ran):
    written(script)
    script.write_text(TRAIN + "print('other')\n")
    code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert (code, ran) == (6, [])
    assert "num_workers, precision" in err
    assert "--force" in err
    code, _out, err = cli("apply", "best.yaml", "--force", "--", "python", "train.py")
    assert code == 7
    assert "warning: the script is not the one" in err


def test_a_changed_script_is_only_a_warning_where_flags_do_it_all(cli, script, ran):
    written(script, good_answer(best=pick("best", FLAGS, ratio(1.4))))
    script.write_text(TRAIN + "print('other')\n")
    code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert code == 7
    assert err.count("the gain may not hold") == 1


def test_another_torch_and_device_are_named(cli, script, ran, monkeypatch):
    written(script)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.9")
    code, _out, err = cli("apply", "best.yaml", "--", "train.py")
    assert code == 7
    assert "warning: torch is 2.9.9, the search ran with 2.13.0" in err


def test_print_env_says_the_plain_command_and_runs_nothing(cli, script, ran):
    written(script, good_answer(best=pick("best", FLAGS, ratio(1.4))))
    code, out, _err = cli(
        "apply", "best.yaml", "--print-env", "--python", sys.executable, "--", "train.py", "--name", "a b"
    )
    assert (code, ran) == (0, [])
    assert out == f"OMP_NUM_THREADS=2 {sys.executable} {script} --name 'a b' --batch-size=64\n"


def test_print_env_comments_what_a_command_line_cannot_say(cli, script, ran):
    written(script)
    out = cli("apply", "best.yaml", "--print-env", "--", "train.py")[1]
    assert "# precision=bf16: a patch in the process, needs `autotune apply`" in out


def test_print_env_never_says_a_batch_without_the_parts_that_keep_it(cli, script, ran):
    parts = (
        flag("batch_size", 8, "--batch-size"),
        patch("accumulation", 4),
        env("threads", 2, "OMP_NUM_THREADS"),
    )
    written(script, good_answer(best=pick("best", FLAGS, ratio(1.4))), changes=parts)
    out = cli("apply", "best.yaml", "--print-env", "--python", sys.executable, "--", "train.py")[1]
    *comments, line = out.splitlines()
    assert line == f"OMP_NUM_THREADS=2 {sys.executable} {script}"
    assert [comment.split(":")[0] for comment in comments] == ["# batch_size=8", "# accumulation=4"]


@pytest.mark.parametrize("words", [["apply", "best.yaml", "--print-env"], ["apply", "best.yaml"]])
def test_a_name_of_the_file_that_is_none_reaches_no_command_line(cli, script, ran, words):
    written(script, good_answer(best=pick("best", FLAGS, ratio(1.4))))
    path = Path("best.yaml")
    text = path.read_text()
    assert "OMP_NUM_THREADS" in text
    path.write_text(text.replace("OMP_NUM_THREADS", "A=1; touch x; B"))
    code, out, err = cli(*words, "--", "train.py")
    assert (code, out, ran) == (2, "", [])
    assert "names no variable" in err
    assert not Path("x").exists()


def test_diff_shows_a_line_per_knob(cli, script, ran):
    written(script)
    code, out, _err = cli("apply", "best.yaml", "--diff")
    assert (code, ran) == (0, [])
    assert out.splitlines()[0] == "best: 2.00x [1.95, 2.05]; training differs by rounding only"
    assert out.splitlines()[1].split() == ["batch_size", "32", "->", "64", "by", "option", "--batch-size"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no.yaml", "--", "train.py"], "cannot read no.yaml"),
        (["best.yaml", "--pick", "fastest", "--", "train.py"], 'no pick "fastest"'),
        (["best.yaml", "--", "trian.py"], 'Did you mean "train.py"?'),
    ],
)
def test_usage_errors_end_with_2(cli, script, ran, argv, message):
    written(script)
    code, _out, err = cli("apply", *argv)
    assert (code, ran) == (2, [])
    assert message in err


def test_a_copy_of_published_compile_caches_is_used_but_never_forced(cli, script, ran, monkeypatch, tmp_path):
    import autotune.cli.open_study as opened

    written(script)
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    published = tmp_path / "cache" / "key"
    for name in ("inductor", "triton"):
        (published / name).mkdir(parents=True)
        (published / name / "kernel").write_text("k")
    requested = []
    found = [published, None]
    monkeypatch.setattr(
        opened, "compiled_for", lambda *reported: requested.append(reported) or found[len(requested) - 1]
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cli("apply", "best.yaml", "--", "python", "train.py")
    assert requested == [(spec().study_id, 3, facts().host, sha256)]
    used = ran[0].env["TORCHINDUCTOR_CACHE_DIR"]
    assert (published / "inductor") != Path(used)
    assert Path(used, "kernel").read_text() == "k"
    assert ran[0].env["TRITON_CACHE_DIR"] == "/mine"
    Path(used, "kernel").write_text("torn")
    assert (published / "inductor" / "kernel").read_text() == "k"
    _, _, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert "TORCHINDUCTOR_CACHE_DIR" not in ran[1].env
    assert "cache" not in err


@pytest.mark.torch
def test_flags_and_variables_really_reach_the_script(script, capfd):
    from autotune.cli.main import run

    script.write_text(SHOW)
    written(script, good_answer(best=pick("best", FLAGS, ratio(1.4))))
    code = run(["apply", "best.yaml", "--", sys.executable, "train.py", "--lr", "1"])
    reported = capfd.readouterr()
    assert code == 0
    assert json.loads(reported.out.splitlines()[-1]) == [
        ["--lr", "1", "--batch-size=64"],
        "2",
        str(script.parent),
    ]


def test_changes_survive_the_file_for_the_launcher(script):
    from autotune.export.best_config import core_changes, read_best

    written(script)
    assert core_changes(read_best("best.yaml").picks["best"])[:1] == (
        Change(knob="batch_size", value=64, spelling=Flag(("--batch-size", "-b")), delivered="64"),
    )
    assert core_changes(read_best("best.yaml").picks["best"])[-1].spelling == Env("OMP_NUM_THREADS")


@pytest.fixture
def package(script):
    """A package with a module that trains."""
    folder = script.parent / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text("VALUE = 7\n")
    path = folder / "train.py"
    path.write_text("from .helper import VALUE\n" + SHOW + "print(__name__, __package__, VALUE)\n")
    return path


def test_a_module_is_run_as_one_again(cli, package, ran):
    written(package, module="package.train", options=("-u",), cwd=str(package.parents[1]))
    shutil.move(package.parent / "best.yaml", "best.yaml")
    code, _out, err = cli("apply", "best.yaml", "--pick", "safe")
    (launch,) = ran
    assert code == 7, err
    assert (launch.module, launch.script, launch.options) == ("package.train", str(package), ("-u",))
    assert launch.command[1:4] == ("-u", "-m", "package.train")
    cli("apply", "best.yaml", "--pick", "safe", "--", "python", "-m", "package.train", "--lr", "2")
    assert (ran[1].module, ran[1].argv) == ("package.train", ("--lr", "2"))


def test_without_a_command_the_searched_interpreter_is_taken_where_it_is_still_there(cli, script, ran):
    python = environment(script.parent / "env")
    written(script, python=str(python))
    searched(spec(script=str(script), cwd=str(script.parent), python=str(python)))
    _code, _out, err = cli("apply", "best.yaml", "--pick", "safe")
    assert ran[0].python == str(python)
    assert "autotune: train.py is run by" in err
    assert "warning: torch is missing, the search ran with 2.13.0" in err
    shutil.rmtree(script.parent / "env")
    cli("apply", "best.yaml", "--pick", "safe")
    assert ran[1].python == sys.executable


def test_print_env_shows_a_module_unchanged_started(cli, package, ran):
    written(package, good_answer(best=pick("best", FLAGS, ratio(1.4))), module="package.train")
    shutil.move(package.parent / "best.yaml", "best.yaml")
    out = cli(
        "apply", "best.yaml", "--print-env", "--python", sys.executable, "--", "python", "-m", "package.train"
    )[1]
    assert out == f"OMP_NUM_THREADS=2 {sys.executable} -m package.train --batch-size=64\n"


@pytest.mark.torch
def test_a_module_really_runs_under_its_own_name_with_its_relative_imports(package, capfd):
    from autotune.cli.main import run

    written(package, good_answer(best=pick("best", FLAGS, ratio(1.4))))
    shutil.move(package.parent / "best.yaml", "best.yaml")
    code = run(["apply", "best.yaml", "--", sys.executable, "-m", "package.train", "--lr", "1"])
    lines = capfd.readouterr().out.splitlines()
    assert code == 0
    assert json.loads(lines[0])[:2] == [["--lr", "1", "--batch-size=64"], "2"]
    assert lines[1] == "__main__ package 7"


def test_diff_of_a_file_without_a_gain_names_the_picks_that_there_are(cli, script, ran):
    written(script, open_answer())
    code, out, _err = cli("apply", "best.yaml", "--diff")
    assert (code, ran) == (0, [])
    assert out.splitlines() == ["best: your unchanged script", "likely, not confirmed: --pick likely"]
