"""Where we run is not as it should be: a documented code and a remedy, never an internal error."""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

REST = ("--budget", "10m", "--driver", "inline")
SPACE = "schema: autotune.space/v1\nknobs: {num_workers: [0, 2]}\n"


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home: no variable says one, and no account either."""

    def unknown(_uid):
        raise KeyError("uid not found")

    for name in ("HOME", "AUTOTUNE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_home_that_cannot_be_made_ends_with_5_and_says_what_to_set(
    cli, script, tmp_path, monkeypatch, below
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", f"{tmp_path}/file{below}")
    code, out, err = cli("search", "--script", "train.py", *REST, "--json", "--knob", "threads")
    assert (code, json.loads(out)["error"]["kind"]) == (5, "StoreError")
    assert "cannot be made" in err
    assert "Set AUTOTUNE_HOME" in err
    assert cli("list")[0] == 0
    assert "set AUTOTUNE_HOME" in cli("doctor")[1]


@pytest.mark.parametrize(
    "argv",
    [
        ["search", "--script", "train.py", *REST],
        ["search", "--script", "/nowhere/train.py", *REST],
        ["spaces", "list"],
        ["spaces", "validate"],
        ["inspect", "train.py"],
    ],
)
def test_a_folder_that_is_gone_ends_with_6(cli, tmp_path, monkeypatch, argv):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _out, err = cli(*argv)
    assert code == 6
    assert err == "error: the current folder does not exist any more\nhint: change to another one: cd ~\n"


def test_without_a_folder_what_needs_none_works(cli, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [cli(*argv)[0] for argv in (["--help"], ["--version"], ["list"])] == [0, 0, 0]


def test_without_a_home_studies_end_with_5_and_the_rest_works(cli, script, homeless):
    for argv in (["list"], ["show"], ["search", "--script", "train.py", *REST]):
        code, _out, err = cli(*argv)
        assert code == 5, err
        assert "no home directory is known" in err
        assert "Set AUTOTUNE_HOME" in err
    assert cli("spaces", "list")[0] == 0
    code, out, _err = cli("doctor")
    assert code == 6
    assert "no home directory is known" in out
    code, _out, err = cli("search", "--script", "~/train.py", *REST)
    assert (code, "set HOME" in err) == (6, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_finds_no_room_ends_with_6():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "inspect", "--knobs"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 6
    assert done.stderr.startswith(b"error: a disk is full, or a quota is used up")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_name_that_the_terminal_cannot_show_is_no_error(tmp_path, more):
    (tmp_path / "näme.yaml").write_text(SPACE)
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "spaces", "show", "./näme.yaml", *more],
        capture_output=True,
        env=environ,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if more:
        assert json.loads(done.stdout)["source"] == "näme.yaml"
    else:
        assert b"n\\xe4me.yaml" in done.stdout
