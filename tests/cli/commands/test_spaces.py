"""`autotune spaces`, and how a search's space is requested and reported."""

import json
from pathlib import Path

import pytest
from study_fakes import facts

REST = ("--budget", "10m", "--driver", "inline")
OWN = """schema: autotune.space/v1
description: Mine.
extends: quick
declare:
  - {name: fused_loss, effect: NUMERIC, values: [0, 1], flag: --fused-loss, help: One kernel.}
  - {name: reorder, effect: TRAINING, values: [0, 1], env: REORDER}
constraints: {peak_memory: {at_most: 6GiB}}
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    import autotune.inspection.host as host

    monkeypatch.setattr(host, "host_facts", lambda: facts().host)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def mine(script):
    path = Path("search_spaces/mine.yaml")
    path.parent.mkdir()
    path.write_text(OWN)
    return path


def test_the_list_names_presets_short_names_and_files_of_the_user(cli, mine):
    out = cli("spaces", "list")[1]
    assert out.startswith("auto ")
    assert "gpu_vision, vision" in out
    rows = {row["name"]: row for row in json.loads(cli("spaces", "list", "--json")[1])["spaces"]}
    assert (rows["mine"]["origin"], rows["mine"]["use"]) == ("here", "Mine.")
    assert (rows["cpu"]["origin"], rows["gpu_transformer"]["alias"]) == ("built-in", "transformer")


def test_the_help_names_both_folders_in_which_files_of_the_user_are_found(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    reported = " ".join(cli("spaces", "list", "--help")[1].split())
    assert "./search_spaces and ~/.config/autotune/search_spaces" in reported
    folder = tmp_path / "config" / "autotune" / "search_spaces"
    folder.mkdir(parents=True)
    (folder / "yours.yaml").write_text(OWN)
    rows = {row["name"]: row for row in json.loads(cli("spaces", "list", "--json")[1])["spaces"]}
    assert rows["yours"]["origin"] == "yours"


def test_a_malformed_file_is_listed_all_the_same(cli, mine):
    mine.write_text("nonsense: 1\n")
    code, out, _err = cli("spaces", "list")
    assert code == 0
    assert "not valid: mine.yaml: no schema is given" in out


def test_a_space_is_shown_with_what_it_declares_and_withholds(cli, mine):
    out = cli("spaces", "show", "mine")[1]
    assert "fused_loss" in out
    assert "your own: NUMERIC, flag --fused-loss" in out
    assert "reorder" in out
    assert "--allow" in out
    assert "peak memory at most 6.0 GiB" in out
    data = json.loads(cli("spaces", "show", "mine", "--json")[1])
    assert data["declared"][0] == {
        "name": "fused_loss", "effect": "NUMERIC", "values": [0, 1], "how": "flag",
        "spelling": "--fused-loss", "help": "One kernel.",
    }  # fmt: skip
    assert data["needs_permission"] == ["reorder"]
    assert data["starts"]
    auto = json.loads(cli("spaces", "show", "auto", "--json")[1])
    assert [c["name"] for c in auto["candidates"]][:2] == ["default", "cpu"]


def test_validate_says_everything_that_is_wrong_with_its_line(cli, mine):
    mine.write_text(OWN + "knobs:\n  precison: [bf16]\n  threads: 4\n")
    code, out, err = cli("spaces", "validate", "mine", "quick")
    assert code == 2
    assert out == "quick is valid: 10 knobs\n"
    assert 'error: mine.yaml:9: there is no knob "precison"\nhint: Did you mean' in err
    assert "error: mine.yaml:10: knobs.threads: an entry is a list" in err
    code, out, err = cli("spaces", "validate", "./search_spaces/mine.yaml", "--json")
    data = json.loads(out)
    assert (code, data["exit"], err) == (2, 2, "")
    assert len(data["validated"][0]["findings"]) == 2


def test_validate_without_a_name_looks_at_all_there_are(cli, mine):
    code, out, _err = cli("spaces", "validate")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} > {"mine", "default", "memory"}
    assert cli("spaces", "validate", "auto")[0] == 0
    assert cli("spaces", "validate", "nowhere")[0] == 2


def test_auto_is_what_is_searched_unless_another_space_is_named(cli, script, tune):
    cli("search", "--script", "train.py", *REST)
    cli("search", "--script", "train.py", *REST, "--space", "vision")
    auto, vision = tune.specs
    assert (auto.space.name, len(auto.space.candidates)) == ("auto", 6)
    assert (vision.space.name, vision.space.candidates) == ("gpu_vision", ())


def test_permission_reaches_the_space(cli, mine, tune):
    search = ("search", "--script", "train.py", *REST, "--space", "mine")
    assert cli(*search, "--allow", "reorder")[0] == 0
    (spec,) = tune.specs
    assert spec.space.allowed == ("reorder",)
    assert "reorder" in spec.space.knobs
    code, _out, err = cli(*search, "--allow", "threads,reorder")
    assert code == 2
    assert "threads: it leaves the training unchanged and needs no permission" in err


def test_the_bound_of_a_space_is_the_searchs_and_the_tighter_one_holds(cli, mine, tune):
    search = ("search", "--script", "train.py", *REST, "--space", "mine")
    cli(*search)
    cli(*search, "--max-memory", "2GiB")
    mine.write_text(OWN.replace("6GiB", "0.5"))
    cli(*search)
    assert [s.max_memory_bytes for s in tune.specs] == [6 << 30, 2 << 30, facts().host.memory_bytes // 2]


def test_inspect_says_what_needs_permission_and_which_space_is_likely(cli, script):
    data = json.loads(cli("inspect", "train.py", "--static", "--json")[1])
    rows = {row["knob"]: row for row in data["knobs"]}
    assert rows["in_order"]["status"] == "if allowed"
    assert data["space"]["name"] == "cpu"
    assert (
        "A search probably takes the space cpu: no NVIDIA GPU was found."
        in cli("inspect", "train.py", "--static")[1]
    )


def test_a_dry_run_shows_which_space_and_what_is_not_read_back(cli, mine, monkeypatch):
    import autotune.driver.tune as tune

    monkeypatch.setattr(tune.isolation, "examined", lambda *_: tune.isolation.Isolation("redirect"))
    monkeypatch.setattr(tune, "host_facts", lambda: facts().host)
    Path("train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--fused-loss', type=int, default=0)\np.parse_args()\n"
    )
    out = cli("search", "--script", "train.py", *REST, "--space", "mine", "--dry-run")[1]
    line = next(line for line in out.splitlines() if "fused_loss" in line)
    assert "0, 1   NUMERIC   by --fused-loss, delivered, effect not read" in line
    assert "--allow reorder" in out
    out = cli("search", "--script", "train.py", *REST, "--dry-run")[1]
    assert "space auto: cpu is likely, because no NVIDIA GPU was found; the first run decides" in out
    data = json.loads(cli("search", "--script", "train.py", *REST, "--dry-run", "--json")[1])
    assert data["space"]["name"] == "cpu"


def test_a_dry_run_names_values_that_cannot_be_had_here(cli, script, tune):
    search = ("search", "--script", "train.py", *REST, "--dry-run")
    assert "\nnot applicable here: precision=fp16\n" in cli(*search)[1]
    assert json.loads(cli(*search, "--json")[1])["not_here"] == ["precision=fp16"]
