"""Precedence: the command line, then a variable, then a space that was chosen, then the project's file."""

import json
import sys

import pytest
from study_fakes import facts

from autotune.cli.main import _command
from autotune.cli.settings import _parameter, defaults_for, with_typed_interpreter
from autotune.config_files.settings import KEYS, variable

FILE = '[tool.autotune]\nbudget = "20m"\ndriver = "inline"\nset = ["num_workers=0,2"]\n'


@pytest.fixture(autouse=True)
def file(script):
    (script.parent / "pyproject.toml").write_text(FILE)


def spec_of(cli, tune, *words):
    code, _out, err = cli("search", "--script", "train.py", *words)
    assert code == 0, err
    return tune.specs[-1]


def test_what_is_not_typed_comes_from_a_variable_and_then_from_the_file(cli, tune, monkeypatch):
    assert spec_of(cli, tune).budget.seconds == 1200
    monkeypatch.setenv("AUTOTUNE_BUDGET", "30m")
    monkeypatch.setenv("AUTOTUNE_KEEP_LOGGERS", "1")
    spec = spec_of(cli, tune)
    assert (spec.budget.seconds, spec.driver, spec.keep_loggers) == (1800, "inline", True)
    assert spec_of(cli, tune, "--budget", "40m").budget.seconds == 2400


def workers(spec):
    """What is searched for num_workers, in the space or in every one that may be chosen."""
    spaces = spec.space.candidates or (spec.space,)
    return {space.knobs.get("num_workers") for space in spaces}


def test_a_space_that_was_chosen_is_stronger_than_the_file(cli, tune, monkeypatch):
    assert workers(spec_of(cli, tune)) == {(0, 2)}
    assert workers(spec_of(cli, tune, "--space", "quick")) != {(0, 2)}
    monkeypatch.setenv("AUTOTUNE_SPACE", "quick")
    assert workers(spec_of(cli, tune)) != {(0, 2)}
    assert workers(spec_of(cli, tune, "--set", "num_workers=4")) == {(4,)}


def test_a_setting_that_is_wrong_is_reported_with_its_place(cli, script, monkeypatch):
    (script.parent / "pyproject.toml").write_text('[tool.autotune]\nbudget = "30"\n')
    code, _out, err = cli("search", "--script", "train.py")
    assert code == 2
    assert '"30" has no unit' in err
    assert "settings: budget=30 (pyproject.toml:2)" in err
    monkeypatch.setenv("AUTOTUNE_BUDGET", "x")
    assert "budget=x (AUTOTUNE_BUDGET)" in cli("search", "--script", "train.py")[2]


def test_settings_of_another_space_that_do_not_count_are_named(cli, tune):
    _code, _out, err = cli("search", "--script", "train.py", "--space", "quick")
    assert "not used, as --space is chosen and these are of another: set=num_workers=0,2" in err
    assert "not used" not in cli("search", "--script", "train.py")[2]


def test_what_was_not_typed_is_named_before_the_search_and_in_a_dry_run(cli, tune, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_TRACKING_URI", "http://me:canary-pass@x")
    words = ("search", "--script", "train.py", "--seed", "3")
    reported = "settings: budget=20m (pyproject.toml:2), set=num_workers=0,2 (pyproject.toml:4)"
    _code, out, err = cli(*words)
    assert err.splitlines()[0].startswith(reported)
    assert "driver=inline (pyproject.toml:3)" in err
    assert "canary" not in err
    assert "settings" not in out
    assert cli(*words, "--dry-run")[1].startswith(reported)
    (note,) = json.loads(cli(*words, "--dry-run", "--json")[1])["notes"]
    assert note.startswith(reported)
    assert cli(*words, "--quiet")[2] == ""


def test_what_the_file_says_about_another_space_is_not_named_either(cli, tune):
    err = cli("search", "--script", "train.py", "--space", "quick", "--budget", "10m")[2]
    assert err.splitlines()[0] == "settings: driver=inline (pyproject.toml:3)"


def test_a_setting_that_does_not_exist_ends_with_2_and_help_is_there_all_the_same(cli, script, tune):
    (script.parent / "pyproject.toml").write_text('[tool.autotune]\nbudgt = "1h"\n')
    code, out, err = cli("search", "--script", "train.py", "--budget", "10m")
    assert (code, out, tune.specs) == (2, "", [])
    assert 'pyproject.toml:2: [tool.autotune] has no setting "budgt"' in err
    assert cli("search", "--help")[0] == 0
    assert cli("list")[0] == 0


def test_a_mistyped_variable_ends_with_2(cli, tune, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_BUGET", "1h")
    code, _out, err = cli("search", "--script", "train.py")
    assert code == 2
    assert 'Did you mean "AUTOTUNE_BUDGET"?' in err


def test_a_variable_of_the_wrong_type_ends_with_2(cli, tune, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_TRIALS", "many")
    code, _out, err = cli("search", "--script", "train.py")
    assert code == 2
    assert "--trials" in err


def test_every_setting_is_an_option_of_search_with_its_variable():
    options = {name: p for p in _command().commands["search"].params for name in p.opts}
    for key in KEYS:
        option = options[f"--{key}"]
        assert option.name == _parameter(key)
        assert option.envvar == variable(key)


def test_a_script_is_looked_at_with_the_interpreter_of_the_file(cli, script):
    (script.parent / "pyproject.toml").write_text('[tool.autotune]\npython = "gone/bin/python"\n')
    code, out, err = cli("inspect", "train.py", "--static")
    assert (code, out) == (2, "")
    assert "there is no interpreter" in err
    assert "gone/bin/python" in err
    assert cli("inspect", "--help")[0] == 0


@pytest.mark.parametrize("verb", ["apply", "verify", "export"])
def test_what_starts_a_best_yaml_keeps_the_interpreter_that_this_names(verb):
    assert defaults_for([verb, "best.yaml"]) == {}


def test_an_interpreter_that_is_typed_or_in_a_variable_is_stronger_than_the_file(cli, script, monkeypatch):
    monkeypatch.setattr("autotune.inspection.host.host_facts", lambda: facts().host)
    (script.parent / "pyproject.toml").write_text('[tool.autotune]\npython = "gone/bin/python"\n')
    words = ("inspect", "train.py", "--static")
    assert cli(*words, "--python", sys.executable)[0] == 0
    monkeypatch.setenv("AUTOTUNE_PYTHON", sys.executable)
    assert cli(*words)[0] == 0


@pytest.mark.parametrize("source", ["file", "variable"])
def test_an_interpreter_that_is_typed_after_the_dashes_is_stronger(cli, script, monkeypatch, source):
    if source == "file":
        (script.parent / "pyproject.toml").write_text('[tool.autotune]\npython = "gone/bin/python"\n')
    else:
        monkeypatch.setenv("AUTOTUNE_PYTHON", "gone/bin/python")
    monkeypatch.setattr("autotune.inspection.host.host_facts", lambda: facts().host)
    code, _, err = cli("inspect", "--static", "--", "python", "train.py")
    assert (code, "gone/bin/python" in err) == (2, True)
    assert cli("inspect", "--static", "--", sys.executable, "train.py")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["search", "--", "python", "train.py"],
        ["search", "--script", "train.py", "--", "/data/python3"],
        ["search", "--script=train.py", "--", "/data/python3"],
        ["verify", "best.yaml", "--python", "python3.12", "--", "/opt/venv/bin/python3.12", "train.py"],
        ["verify", "best.yaml", "--python=python3.12", "--", "/opt/venv/bin/python3.12", "train.py"],
        ["search", "--", "./python_bench.py"],
        ["inspect", "--"],
        ["inspect", "train.py"],
        ["compare", "--", "/opt/venv/bin/python3.12"],
        ["--", "/opt/venv/bin/python3.12"],
        [],
    ],
)
def test_what_names_no_interpreter_of_its_own_stays_unchanged(words):
    assert with_typed_interpreter(words) == words


@pytest.mark.parametrize("verb", ["search", "inspect", "apply", "verify", "export"])
def test_every_verb_that_takes_a_command_knows_the_interpreter_in_it(verb):
    words = [verb, "--force", "--", "/opt/venv/bin/python3.12", "train.py"]
    assert with_typed_interpreter(words) == [verb, "--python", "", *words[1:]]
