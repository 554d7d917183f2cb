"""Two best.yaml side by side: claims, places and knobs, and no verdict between them."""

import json
from dataclasses import replace

import pytest
from study_fakes import BEST, changes_of, facts, good_answer, no_answer, pick, ratio, spec, study

from autotune.export.best_config import write_best
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import DeviceFacts

OTHER = "01KAK2M7Q4ZC0V9X3T5R8W6Y1C"
FEWER = Config({**BEST, "num_workers": 2})


@pytest.fixture
def written(script):
    def write(name, answer, *, known=None, **fields):
        given = spec(script=str(script), cwd=str(script.parent), out="", **fields)
        write_best(script.parent / name, study(spec=given, facts=known or facts()), answer, changes_of)

    return write


@pytest.fixture
def two(written):
    """Files of two searches, whose best configurations differ in the number of workers."""
    written("one.yaml", good_answer())
    faster = pick("best", FEWER, ratio(2.5), effect=Effect.NUMERIC)
    written("two.yaml", good_answer(best=faster), study_id=OTHER, label="train-1122-0900")


def test_both_claims_stand_beside_each_other_with_the_knobs_that_differ(cli, two):
    code, out, err = cli("compare", "one.yaml", "two.yaml")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["one.yaml", "two.yaml"]
    for word in ("2.00x [1.95, 2.05], 6 pairs", "2.50x [2.45, 2.55], 6 pairs", "train.py", "CPU X", "2.13.0"):
        assert word in out
    differing = [line.split() for line in out.splitlines() if line.startswith("  ") and line[2] != " "]
    assert differing == [["num_workers", "4", "2"]]


def test_nobody_is_reported_to_be_faster_and_what_would_tell_is_named(cli, two):
    out = cli("compare", "one.yaml", "two.yaml")[1]
    assert "claims of separate searches" in out
    assert "not against the other" in out
    assert "autotune verify one.yaml, autotune verify two.yaml" in out
    assert "different" not in out


def test_the_object_is_that_of_studies_with_the_knobs_that_differ(cli, two):
    data = json.loads(cli("compare", "one.yaml", "two.yaml", "--json")[1])
    assert (data["schema"], data["exit"]) == ("autotune.compare/v1", 0)
    assert data["a"]["picks"]["best"]["speedup"]["value"] == 2.0
    assert data["b"]["picks"]["best"]["speedup"]["n"] == 6
    assert data["b"]["picks"]["best"]["config"] == dict(FEWER)
    assert data["knobs"] == {"best": {"num_workers": {"a": 4, "b": 2}}}
    assert (data["same_script"], data["same_machine"]) == (True, True)
    assert {s["verdict"] for s in data["statements"]} == {"incomparable"}
    assert data["verify"] == ["autotune verify one.yaml", "autotune verify two.yaml"]


def test_another_machine_and_another_script_are_reported(cli, written):
    written("one.yaml", good_answer())
    gpu = DeviceFacts(name="NVIDIA X", uuid="GPU-1", memory_bytes=1 << 34, driver="580")
    there = replace(facts(), host=replace(facts().host, devices=(gpu,)))
    written("two.yaml", good_answer(), known=there, study_id=OTHER, args=("--lr", "2"))
    out = cli("compare", "one.yaml", "two.yaml")[1]
    assert "different scripts or arguments" in out
    assert "different machines or versions" in out
    data = json.loads(cli("compare", "one.yaml", "two.yaml", "--json")[1])
    assert {"what": "device", "a": "none", "b": "NVIDIA X"} in data["differences"]
    assert (data["same_script"], data["same_machine"]) == (False, False)


def test_a_file_without_a_gain_has_no_pick_and_is_not_verified(cli, written):
    written("one.yaml", good_answer())
    written("none.yaml", no_answer(), study_id=OTHER)
    data = json.loads(cli("compare", "one.yaml", "none.yaml", "--json")[1])
    assert data["b"]["picks"] == {}
    assert data["verify"] == ["autotune verify one.yaml"]
    assert data["knobs"]["best"]["num_workers"] == {"a": 4, "b": 0}
    out = cli("compare", "none.yaml", "none.yaml")[1]
    assert next(line for line in out.splitlines() if line.startswith("best")).split() == [
        "best",
        "none",
        "none",
    ]
    assert "verify" not in out


def test_two_files_of_one_search_are_reported_to_be_that(cli, two):
    assert "Both are of one search" in cli("compare", "one.yaml", "./one.yaml")[1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("one.yaml", "train-1121-1002"), "one of the two is a file"),
        (("train-1121-1002", "one.yaml"), "one of the two is a file"),
        (("one.yaml", "gone.yaml"), "cannot read gone.yaml"),
    ],
)
def test_a_file_and_something_else_end_with_2(cli, two, names, message):
    code, out, err = cli("compare", *names)
    assert (code, out) == (2, "")
    assert message in err
    assert json.loads(cli("compare", *names, "--json")[1])["error"]["kind"] == "UsageError"


def test_a_terminal_is_kept_to(cli, two, monkeypatch):
    whole = cli("compare", "one.yaml", "two.yaml")[1]
    monkeypatch.setattr("autotune.cli.outcome.terminal_columns", lambda: 70)
    narrow = cli("compare", "one.yaml", "two.yaml")[1]
    assert all(len(line) <= 70 for line in narrow.splitlines())
    assert sorted(narrow.split()) == sorted(whole.split())
