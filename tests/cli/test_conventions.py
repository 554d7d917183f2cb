"""What every command line is expected to have: completion, version, schemas for editors, words meant."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from study_fakes import changes_of, facts, good_answer, study

from autotune.cli.commands import doctor
from autotune.driver.spec import version
from autotune.export.best_config import write_best

ROOT = Path(__file__).parents[2]


def test_the_version_is_one_line_on_stdout(cli):
    assert cli("--version") == (0, f"autotune {version()}\n", "")


def completing(home, *argv, **variables):
    """A command line in a shell of its own, and what was noted of internal errors."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "AUTOTUNE_HOME": str(home / "ours"), **variables}
    command = [sys.executable, "-m", "autotune", *argv]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert not (home / "ours" / "errors.log").exists()
    return done


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete ")]
)
def test_a_shell_can_be_taught_to_complete(tmp_path, shell, word):
    done = completing(tmp_path, _AUTOTUNE_COMPLETE=f"source_{shell}")
    assert (done.returncode, done.stderr) == (0, "")
    assert word in done.stdout
    assert "_AUTOTUNE_COMPLETE" in done.stdout


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_completion_is_installed_and_shown_without_a_complaint(tmp_path, option):
    # The shell is given: that of the tests' own process is anything.
    done = completing(tmp_path, option, "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (done.returncode, done.stderr) == (0, "")
    taught = tmp_path / ".bash_completions" / "autotune.sh"
    assert "_AUTOTUNE_COMPLETE" in (done.stdout if option == "--show-completion" else taught.read_text())


def test_completion_knows_the_verbs_and_their_options(tmp_path):
    done = completing(
        tmp_path, _AUTOTUNE_COMPLETE="complete_bash", COMP_WORDS="autotune search --bud", COMP_CWORD="2"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--budget" in done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "code"), [("autotune search --bud", 0), ("autotune clean nothing-here ", 1)]
)
def test_a_shell_that_asks_whether_there_is_anything_to_complete_is_answered_by_the_code(
    tmp_path, typed, code
):
    asks = {"_TYPER_COMPLETE_FISH_ACTION": "is-args", "_TYPER_COMPLETE_ARGS": typed}
    done = completing(tmp_path, _AUTOTUNE_COMPLETE="complete_fish", **asks)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("serch",), "search"),
        (("spaces", "lst"), "list"),
        (("search", "--scrip", "x.py"), "--script"),
        (("schema", "spac"), "space"),
        (("spaces", "show", "cpuu"), "cpu"),
        (("search", "--script", "trian.py", "--budget", "1m"), "train.py"),
        (("search", "--script", "train.py", "--budget", "1m", "--knob", "precisoin"), "precision"),
        (("search", "--script", "train.py", "--budget", "1m", "--driver", "rayy"), "ray"),
        (("search", "--script", "train.py", "--budget", "1m", "--sampler", "tpee"), "tpe"),
        (("search", "--script", "train.py", "--budget", "1m", "--space", "quikc"), "quick"),
        (("apply", "best.yaml", "--pick", "saef"), "safe"),
        (("verify", "best.yaml", "--pick", "saef"), "safe"),
    ],
)
def test_a_word_that_is_nearly_right_is_answered_by_the_right_one(cli, script, typed, meant):
    write_best(script.parent / "best.yaml", study(facts=facts()), good_answer(), changes_of)
    code, out, err = cli(*typed)
    assert (code, out) == (2, "")
    assert meant in err.replace(" ".join(typed), "")


def test_what_a_search_writes_and_what_is_shipped_is_as_the_schemas_for_editors_say(cli, script):
    jsonschema = pytest.importorskip("jsonschema", reason="comes with Ray, as it happens")
    write_best(script.parent / "best.yaml", study(facts=facts()), good_answer(), changes_of)
    files = {
        "config": [script.parent / "best.yaml"],
        "space": sorted((ROOT / "search_spaces").glob("*.yaml")),
    }
    for which, paths in files.items():
        schema = json.loads(cli("schema", which)[1])
        jsonschema.Draft202012Validator.check_schema(schema)
        judge = jsonschema.Draft202012Validator(schema)
        for path in paths:
            assert [e.message for e in judge.iter_errors(yaml.safe_load(path.read_text()))] == [], path.name
        assert list(judge.iter_errors({"schema": "another/v1", "surprise": 1}))


def test_doctors_output_names_no_folder_of_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("AUTOTUNE_HOME", "/data/secret-project/autotune")
    monkeypatch.setattr(sys, "prefix", "/data/secret-project/venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    public = doctor._public
    assert public("3.11.7, /data/secret-project/venv/bin/python") == "3.11.7, .../venv/bin/python"
    assert public("/data/secret-project/autotune, 3 GiB free") == "$AUTOTUNE_HOME, 3 GiB free"
    assert public("/home/somebody/.local and /usr/bin/g++") == "~/.local and /usr/bin/g++"
    monkeypatch.setenv("AUTOTUNE_HOME", "/home/somebody/client/autotune")
    monkeypatch.setattr(sys, "prefix", "/home/somebody/client/.venv")
    assert public("/home/somebody/client/.venv/bin/python") == ".../.venv/bin/python"
    assert public("/home/somebody/client/autotune, full") == "$AUTOTUNE_HOME, full"
    monkeypatch.chdir(tmp_path)
    assert public(f"sqlite:///{tmp_path}/mlflow.db") == "sqlite:///./mlflow.db", "where a search was begun"


def test_doctor_takes_names_of_people_for_what_they_are_and_nothing_else(monkeypatch):
    monkeypatch.setenv("HOME", "/home/al")
    monkeypatch.delenv("AUTOTUNE_HOME", raising=False)
    monkeypatch.setenv("USER", "al")
    monkeypatch.setenv("LOGNAME", "al")
    public = doctor._public
    assert public("/home/al/bin/c++ and /home/alice/bin/c++") == "~/bin/c++ and /home/alice/bin/c++"
    assert public("/scratch/al/envs/bin/python, /data/al") == "/scratch/<user>/envs/bin/python, /data/<user>"
    assert public("al, real, /usr/local/bin") == "al, real, /usr/local/bin"
    monkeypatch.setenv("USER", "root")
    monkeypatch.setenv("LOGNAME", "root")
    assert public("/root/x, /scratch/root/x") == "/root/x, /scratch/root/x"


def test_completion_offers_the_studies_that_there_are(tmp_path):
    from report_study import spec

    from autotune.model.wire import to_wire
    from autotune.store.journal import Journal

    home, study_id = tmp_path / "home", spec().study_id
    with Journal.create(home / "studies" / study_id, ballast_bytes=0) as journal:
        opened = {"spec": spec(), "wall_s": 1.0, "host": "", "pid": 1, "version": "0.1.0"}
        journal.append("opened", "opened/1", to_wire(opened))
    offered = {}
    for typed in ("show tra", "compare first trai", "ui other"):
        words = {"COMP_WORDS": f"autotune {typed}", "COMP_CWORD": str(len(typed.split()))}
        done = completing(tmp_path, AUTOTUNE_HOME=str(home), _AUTOTUNE_COMPLETE="complete_bash", **words)
        assert (done.returncode, done.stderr) == (0, "")
        offered[typed] = done.stdout.split()
    assert offered == {"show tra": [spec().label], "compare first trai": [spec().label], "ui other": []}


def test_completion_is_silent_where_studies_cannot_be_read(monkeypatch, tmp_path):
    from autotune.cli.complete import study_labels

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file"))
    assert study_labels("") == []


@pytest.mark.parametrize(
    ("typed", "text", "hint"),
    [
        (("schema", "nope"), "'nope' is not one of 'space', 'config'", "autotune schema --help"),
        (("schema",), "Missing argument 'which'.", "one of: space, config"),
        (("ui", "--port", "x"), "'--port': expected a whole number", "autotune ui --help"),
        (("ui", "--port", "99999"), "'--port': must be at most 65535", "autotune ui --help"),
        (("ui", "--port", "-1"), "'--port': must be at least 0", "autotune ui --help"),
        (("search", "--script", "train.py", "--price-per-hour", "x"), "expected a number", "search --help"),
        (("inspect", "--knobs=precision"), "'--knobs' does not take a value", "autotune --help"),
        (
            ("search", "--script", "train.py", "--budget", "1m", "--", "python", "train.py"),
            "the script is named twice: by --script train.py, and by python train.py after --",
            "without --script: -- python train.py",
        ),
        (
            ("search", "--script", "train.py", "--budget", "1m", "--set", "precision=bf61"),
            "--set: precision has no value bf61",
            'Did you mean "bf16"?',
        ),
    ],
)
def test_a_wrong_word_is_reported_with_its_place_and_what_to_do_in_our_words(cli, script, typed, text, hint):
    code, out, err = cli(*typed)
    message, _, remedy = err.partition("\nhint: ")
    assert (code, out) == (2, "")
    assert text in message
    assert hint in remedy
    for theirs in ("Value error", "Input should", "Choose from", "\t"):
        assert theirs not in err


@pytest.mark.parametrize("verb", ["show", "report", "resume", "sync", "ui", "clean"])
def test_a_study_that_is_nearly_named_is_meant(cli, tmp_path, monkeypatch, verb):
    from report_study import spec

    from autotune.model.wire import to_wire
    from autotune.store.journal import Journal

    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    with Journal.create(tmp_path / "home" / "studies" / spec().study_id, ballast_bytes=0) as journal:
        opened = {"spec": spec(), "wall_s": 1.0, "host": "", "pid": 1, "version": "0.1.0"}
        journal.append("opened", "opened/1", to_wire(opened))
    code, _out, err = cli(verb, "trian-1121-1002")
    assert code == 5
    assert 'Did you mean "train-1121-1002"?' in err


def test_an_editor_finds_the_schemas_as_the_documentation_says(cli, script):
    jsonschema = pytest.importorskip("jsonschema", reason="comes with Ray, as it happens")
    text = (ROOT / "docs" / "reference" / "schemas.md").read_text(encoding="utf-8")
    kept = dict(re.findall(r"^autotune schema (\w+) > (\S+)$", text, re.MULTILINE))
    assert set(kept) == {"space", "config"}
    folder = script.parent
    for which, name in kept.items():
        (folder / name).write_text(cli("schema", which)[1])
    settings = json.loads("{" + re.search(r'`("yaml\.schemas": .*)`', text)[1] + "}")["yaml.schemas"]
    assert settings == {kept["space"]: ["search_spaces/*.yaml"], kept["config"]: ["best.yaml"]}
    (first,) = re.findall(r"`(# yaml-language-server: \$schema=\S+)`", text)
    space = folder / "mine.yaml"
    space.write_text(
        f"{first}\nschema: autotune.space/v1\nextends: default\nknobs: {{precisoin: [bf16], threads: 4}}\n"
    )
    # What a language server does: the path in the first line, from the file's own folder.
    found = folder / space.read_text().splitlines()[0].partition("$schema=")[2]
    judge = jsonschema.Draft202012Validator(json.loads(found.read_text()))
    reported = [error.json_path for error in judge.iter_errors(yaml.safe_load(space.read_text()))]
    assert reported == ["$.knobs.threads"]
    assert cli("spaces", "validate", str(space))[0] == 2, "and what the loader says of it, first line and all"
