"""`autotune export`: every format from a file, exit codes, what is left out is named where people look."""

import hashlib
import json
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml
from study_fakes import BEST, changes_of, facts, good_answer, no_answer, pick, ratio, spec, study

from autotune.cli.commands.export import _FORMS, EXPORT_SCHEMA, Format
from autotune.export.best_config import write_best
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import ScriptFacts

TRAIN = """import argparse
from torch.utils.data import DataLoader
p = argparse.ArgumentParser()
p.add_argument('--batch-size', '-b', type=int, default=32)
p.add_argument('--lr', type=float)






train = DataLoader(data, num_workers=0)
"""
"""The loader stands on line 12, as the changes of `study_fakes` have it."""
FORMATS = [form.value for form in Format if form is not Format.optuna]


@pytest.fixture
def file(script):
    """A best.yaml beside the script that it was found for; both in the current folder."""
    script.write_text(TRAIN)
    return written(script)


def written(script, answer=None, **fields):
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    known = replace(facts(), script=ScriptFacts(path=str(script), sha256=sha256))
    done = study(spec=spec(**{"script": str(script), "cwd": str(script.parent), **fields}), facts=known)
    write_best(script.parent / "best.yaml", done, answer or good_answer(), changes_of)
    return "best.yaml"


@pytest.mark.parametrize("form", FORMATS)
def test_every_change_of_a_pick_is_in_every_format_or_named_as_left_out(cli, file, form):
    code, out, err = cli("export", file, "--as", form, "--json")
    reported = json.loads(out)
    assert err == ""
    assert (reported["schema"], reported["format"], reported["pick"]) == (EXPORT_SCHEMA, form, "best")
    assert {*reported["included"], *(left["knob"] for left in reported["left"])} == set(BEST)
    assert len(reported["included"]) + len(reported["left"]) == len(BEST)
    assert all(left["reason"] for left in reported["left"])
    assert reported["apply"] == "autotune apply best.yaml"
    assert (code, reported["exit"]) == (0, 0)


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_left_out_is_named_to_people_with_the_command_that_sets_it(cli, file, form):
    reported = json.loads(cli("export", file, "--as", form, "--json")[1])
    code, out, err = cli("export", file, "--as", form)
    assert code == 0
    assert reported["text"] in out
    for left in reported["left"]:
        line = f"{left['knob']}={left['value']}: {left['reason']}"
        assert (f"# left out: {line}\n" in out and left["knob"] in err) or f"left out: {line}\n" in err
    if reported["left"]:
        assert "autotune apply best.yaml" in err


def test_the_command_line_is_the_searched_one_with_options_and_variables(cli, file):
    code, out, err = cli("export", file, "--as", "argv")
    assert code == 0
    assert out.splitlines()[-1] == "OMP_NUM_THREADS=2 python train.py --lr 1e-3 --batch-size=64"
    assert out.startswith("# best.yaml, pick best: 2.00x\n# left out: num_workers=4: ")
    assert "# all of it: autotune apply best.yaml\n" in out
    assert err == (
        "autotune: left out, for reasons in the comments: num_workers, precision; "
        "all of it: autotune apply best.yaml\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["python", "train.py", "-b", "8"], "python train.py --batch-size=64"),
        (["train.py", "--name", "a b"], "python train.py --name 'a b' --batch-size=64"),
    ],
)
def test_another_command_is_taken_unchanged_typed(cli, file, words, line):
    _code, out, _err = cli("export", file, "--as", "argv", "--", *words)
    assert shlex.split(out.splitlines()[-1]) == ["OMP_NUM_THREADS=2", *shlex.split(line)]
    assert f"# all of it: autotune apply best.yaml -- {shlex.join(words)}\n" in out


def test_a_secret_of_the_command_line_has_to_be_reported_again(cli, script):
    written(script, args=("--api-key", "canary"))
    code, out, err = cli("export", "best.yaml", "--as", "argv")
    assert (code, out) == (2, "")
    assert "secret" in err
    assert "canary" not in cli("export", "best.yaml", "--as", "env", "--json")[1]


def test_variables_in_either_form(cli, file):
    assert cli("export", file, "--as", "env")[1].endswith("\nOMP_NUM_THREADS=2\n")
    assert cli("export", file, "--as", "env", "--form", "export")[1].endswith("\nexport OMP_NUM_THREADS=2\n")


def test_json_for_a_program_is_json_alone_on_stdout(cli, file):
    _code, out, err = cli("export", file, "--as", "hf")
    assert json.loads(out) == {
        "per_device_train_batch_size": 64,
        "dataloader_num_workers": 4,
        "bf16": True,
        "fp16": False,
    }
    assert "autotune: left out: threads=2: " in err
    assert "autotune: note: measured by another delivery" in err


def test_the_yaml_of_accelerate_is_yaml_below_its_comments(cli, file):
    _code, out, _err = cli("export", file, "--as", "accelerate")
    assert out.startswith("# best.yaml, pick best")
    assert yaml.safe_load(out)["mixed_precision"] == "bf16"


def test_the_diff_has_the_default_and_the_loader(cli, file, script):
    code, out, err = cli("export", file, "--as", "diff")
    assert code == 0
    assert "\n--- train.py\n+++ train.py\n" in out
    assert "+p.add_argument('--batch-size', '-b', type=int, default=64)\n" in out
    assert "+train = DataLoader(data, num_workers=4)\n" in out
    assert "precision, threads" in err
    if shutil.which("patch"):
        before = script.read_bytes()
        for options in (["-p0"], ["-p0", "-R"]):
            subprocess.run(["patch", *options], input=out.encode(), check=True, capture_output=True)
        assert script.read_bytes() == before


def test_the_diff_is_of_names_below_the_scripts_folder_where_it_lies_elsewhere(
    cli, file, script, monkeypatch
):
    elsewhere = script.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert "\n--- train.py\n" in cli("export", "../best.yaml", "--as", "diff")[1]


def test_an_option_on_the_command_line_is_no_default_of_the_script(cli, file):
    _code, out, _err = cli("export", file, "--as", "diff", "--", "python", "train.py", "-b", "8")
    assert "# left out: batch_size=64: the command line sets --batch-size" in out
    assert "num_workers=4" in out


def test_a_script_that_has_changed_ends_a_diff_with_6(cli, file, script):
    script.write_text("\n" + script.read_text())
    code, out, err = cli("export", file, "--as", "diff")
    assert (code, out) == (6, "")
    assert "not the script that was searched" in err
    code, out, _err = cli("export", file, "--as", "diff", "--force")
    assert code == 0
    assert "+train = DataLoader(data, num_workers=4)\n" in out


def test_a_format_that_can_say_nothing_of_a_pick_ends_with_1(cli, script):
    written(script)
    code, out, _err = cli("export", "best.yaml", "--as", "env", "--pick", "safe")
    assert code == 1
    assert "# left out: num_workers=4: " in out
    assert json.loads(cli("export", "best.yaml", "--as", "env", "--pick", "safe", "--json")[1])["exit"] == 1


@pytest.mark.parametrize("form", FORMATS)
def test_your_script_unchanged_can_be_reported_in_every_format(cli, script, form):
    written(script, no_answer())
    code, _out, _err = cli("export", "best.yaml", "--as", form)
    assert code == 0


def test_a_pick_that_changes_the_training_says_so(cli, script):
    fastest = pick("fastest", Config({"batch_size": 64}), ratio(3.0), effect=Effect.TRAINING)
    written(script, good_answer(fastest=fastest))
    out = cli("export", "best.yaml", "--as", "argv", "--pick", "fastest")[1]
    assert "# note: this pick changes the training\n" in out
    assert "autotune apply --pick fastest" in json.loads(
        cli("export", "best.yaml", "--as", "argv", "--pick", "fastest", "--json")[1]
    )["apply"]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("best.yaml", "--as", "deepsped"), "deepspeed"),
        (("best.yaml", "--as", "hf", "--form", "keyword"), "keywords"),
        (("best.yaml", "--as", "env", "--form", "yaml"), "dotenv, export"),
        (("best.yaml", "--as", "argv", "--form", "json"), "one form alone"),
        (("best.yaml", "--as", "hf", "--pick", "saef"), "safe"),
        (("best.yaml", "--out", "x"), "--out"),
        (("bst.yaml", "--as", "hf"), "bst.yaml"),
    ],
)
def test_what_cannot_be_is_a_usage_error_that_names_what_can(cli, file, typed, meant):
    code, out, err = cli("export", *typed)
    assert (code, out) == (2, "")
    assert meant in err.replace(" ".join(typed), "")


def test_the_forms_of_the_help_are_those_that_there_are(cli):
    reported = " ".join(cli("export", "--help")[1].split())
    for form, known in _FORMS.items():
        assert f"{form.value}: {known[0]} or {known[1]}" in reported


def test_a_study_is_written_for_optuna(cli, script):
    from journaled import journaled

    journaled(script, label="mine")
    code, out, err = cli("export", "mine", "--as", "optuna")
    assert err == ""
    assert code == 0
    assert out.startswith("mine.optuna.db: 18 trials; open it: optuna-dashboard sqlite:///")
    assert cli("export", "mine", "--as", "optuna")[0] == 2, "an existing file is kept"
    code, out, _err = cli("export", "mine", "--as", "optuna", "--out", "other.db", "--json")
    assert json.loads(out)["trials"] == 18
    assert cli("export", "nothing", "--as", "optuna")[0] == 5
