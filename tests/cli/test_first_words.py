"""What a new user types first: bare commands, a script by its name, options in the wrong place, logs."""

import json
from dataclasses import replace

import pytest
from journaled import journaled, trials
from study_fakes import failed

from autotune.driver.spec import version
from autotune.model.config import Config
from autotune.model.trial import Stage

ARGPARSE = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.add_argument('--lr')\n"
)


def test_the_bare_command_and_help_print_the_commands_and_end_with_0(cli):
    code, out, err = cli()
    assert (code, err) == (0, "")
    assert out.startswith("Usage: autotune [OPTIONS] COMMAND")
    assert cli("help") == (0, out, "")


@pytest.mark.parametrize("name", ["spaces", "admin"])
def test_a_group_of_commands_prints_its_help_and_ends_with_0(cli, name):
    code, out, err = cli(name)
    assert (code, err) == (0, "")
    assert out == cli(name, "--help")[1] == cli("help", name)[1]


def test_a_script_in_place_of_a_command_gets_the_corrected_command(cli, script, tune, monkeypatch):
    words = ["train.py", "--budget", "5m"]
    monkeypatch.setattr("sys.argv", ["autotune", *words])
    code, _out, err = cli(*words)
    assert (code, tune.specs) == (2, [])
    assert "hint: autotune search train.py --budget 5m\n" in err


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["version"]])
def test_the_version_is_printed(cli, words):
    assert cli(*words) == (0, f"autotune {version()}\n", "")


def test_help_takes_a_command(cli):
    code, out, _err = cli("help", "search")
    assert code == 0
    assert out == cli("search", "--help")[1]
    assert cli("help", "serch")[0] == 2


def test_the_help_of_search_is_grouped_and_begins_with_examples(cli):
    out = cli("search", "--help")[1]
    titles = [
        "Arguments:",
        "Options:",
        "Search space:",
        "Measuring:",
        "Output:",
        "Cluster:",
        "MLflow:",
        "Expert:",
    ]
    places = [out.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert out.index("autotune search train.py\n") < places[0]
    assert "env var" not in out
    assert "[default: 10m]" in out


def test_a_script_is_named_first_and_the_budget_has_a_default_that_is_shown(cli, script, tune):
    code, _out, err = cli("search", "train.py", "--driver", "inline")
    (spec,) = tune.specs
    assert code == 0
    assert (spec.script, spec.budget.seconds) == (str(script), 600.0)
    assert "budget: 10m, the default; --budget changes it" in err
    assert "default" not in cli("search", "train.py", "--driver", "inline", "--budget", "9m")[2]


def test_arguments_of_the_script_follow_the_dashes(cli, script, tune):
    cli("search", "train.py", "--driver", "inline", "--budget", "9m", "--", "--lr", "0.1", "--budget", "x")
    assert tune.specs[0].args == ("--lr", "0.1", "--budget", "x")
    assert tune.specs[0].budget.seconds == 540.0


@pytest.mark.parametrize(
    ("typed", "corrected"),
    [
        (["--epochs", "3"], "autotune search train.py -- --epochs 3"),
        (["--epochs=3", "--budget", "9m"], "autotune search train.py --budget 9m -- --epochs=3"),
        (
            ["--epochs", "3", "--quiet", "--lr", "0.1"],
            "autotune search train.py --quiet -- --epochs 3 --lr 0.1",
        ),
        (["--epochs", "3", "--", "--lr", "1"], "autotune search train.py -- --epochs 3 --lr 1"),
    ],
)
def test_an_option_of_the_script_before_the_dashes_gets_the_corrected_command(
    cli, script, tune, monkeypatch, typed, corrected
):
    script.write_text(ARGPARSE)
    words = ["search", "train.py", *typed]
    monkeypatch.setattr("sys.argv", ["autotune", *words])
    code, _out, err = cli(*words)
    assert (code, tune.specs) == (2, [])
    assert "train.py has --epochs: put it after --" in err
    assert f"hint: {corrected}\n" in err
    fixed = corrected.removeprefix("autotune ").split()
    assert cli(*fixed[:1], "--driver", "inline", *fixed[1:])[0] == 0, "the hint runs"


def test_an_option_that_neither_has_is_a_plain_error(cli, script, tune, monkeypatch):
    words = ["search", "train.py", "--epochs", "3"]
    monkeypatch.setattr("sys.argv", ["autotune", *words])
    err = cli(*words)[2]
    assert "No such option" in err
    assert "put it after" not in err


def test_apply_with_a_script_explains_what_it_takes(cli, script):
    code, _out, err = cli("apply", "train.py")
    assert code == 2
    assert "train.py is a script; apply takes the file that a search wrote" in err
    assert "autotune search train.py" in err


def test_a_template_of_a_space_is_valid_and_nothing_is_overwritten(cli, script, tune):
    code, out, _err = cli("spaces", "init", "mine.yaml")
    assert code == 0
    assert "--space ./mine.yaml" in out
    assert cli("spaces", "validate", "./mine.yaml")[0] == 0
    assert cli("search", "train.py", "--driver", "inline", "--space", "./mine.yaml")[0] == 0
    assert cli("spaces", "init", "mine.yaml")[0] == 2
    assert cli("spaces", "init", "spaces/mine.yaml")[0] == 0


def test_list_shows_folder_state_and_outcome_in_words(cli, script):
    journaled(script, label="done", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B")
    journaled(script, label="stopped", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1C", stopped="interrupted")
    broken = replace(failed(0, Config()), stage=Stage.BASELINE)
    journaled(
        script, label="broken", study_id="01KAK2M7Q4ZC0V9X3T5R8W6Y1D", rows=(broken,), stopped="no_baseline"
    )
    rows = {row["label"]: row for row in json.loads(cli("list", "--json")[1])["studies"]}
    assert rows["done"]["path"] == str(script)
    assert rows["done"]["state"] == "finished"
    assert rows["stopped"]["state"] == "stopped (Ctrl-C)"
    assert rows["broken"]["state"] == "failed"
    assert rows["broken"]["answer"].startswith(f"{broken.failure.kind.words}: ")
    assert "OUTCOME" in cli("list")[1]


def test_list_can_be_narrowed_to_a_script(cli, script):
    journaled(script, label="mine")
    assert "mine" in cli("list", "train.py")[1]
    assert "no studies of other.py" in cli("list", "other.py")[1]


def test_a_single_trial_is_shown_with_its_figures(cli, script):
    journaled(script)
    code, out, _err = cli("show", "--trial", "3")
    assert code == 0
    assert out.startswith("trial 3 of train-1\n")
    for name in ("stage", "config", "speed", "memory"):
        assert f"\n  {name} " in out
    assert "1.49x your script" in out
    assert json.loads(cli("show", "--trial", "3", "--json")[1])["trials"][0]["number"] == 3
    code, _out, err = cli("show", "--trial", "99")
    assert code == 5
    assert "no trial 99: its trials are 0 to 17" in err


def test_a_failed_trial_is_shown_with_its_reason_in_words(cli, script):
    journaled(script)
    number = next(t.number for t in trials() if t.failure is not None)
    out = cli("show", "--trial", str(number))[1]
    assert "\n  failed    out of host memory: " in out


@pytest.fixture
def logged(script):
    folder = journaled(script)
    for name, text in (
        ("t0003-a1-abc", "try 10m first\n"),
        ("t0003-a2-def", "epoch 1 token=hunter2secret\n"),
    ):
        place = folder / "trials" / name
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(text)
        (place / "stderr.log").write_text("")
    return folder


def test_logs_lists_the_trials_that_have_them_and_prints_every_attempt_of_one(cli, logged):
    out = cli("logs")[1]
    assert out.splitlines()[0].lstrip().startswith("3 ")
    assert "autotune logs train-1 N" in out
    code, out, _err = cli("logs", "train-1", "3")
    assert code == 0
    assert out.index("try 10m first") < out.index("epoch 1")
    assert cli("logs", "3")[1] == out, "a number alone is a trial of the latest search"
    assert "hunter2secret" not in out
    assert cli("logs", "train-1", "3", "--path")[1].strip().endswith("t0003-a2-def")


def test_logs_of_a_trial_without_them_end_with_5(cli, logged):
    code, _out, err = cli("logs", "train-1", "4")
    assert code == 5
    assert "trial 4 has no logs" in err


def test_a_log_that_is_a_link_is_not_followed(cli, logged, tmp_path):
    (tmp_path / "private").write_text("private text")
    place = logged / "trials" / "t0003-a2-def" / "stdout.log"
    place.unlink()
    place.symlink_to(tmp_path / "private")
    assert "private text" not in cli("logs", "3")[1]
