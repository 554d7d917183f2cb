"""Every ending of a search under --json: one object, the documented one, and what went wrong in it."""

import json
import shlex
import signal
from dataclasses import replace

import pytest
from inline_search import inline

from autotune.errors import AutotuneError, BackendError, DiskFull
from autotune.export.best_config import read_best
from autotune.launch.fake import COMPUTE_BOUND, FAILS_IN_BASELINE, World

FAST = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})
SAME = replace(COMPUTE_BOUND, gains={}, process_noise=0.0)
LATE = 6
"""A run in the middle of confirmation."""
WORDS = ("search", "--script", "train.py", "--budget", "4m", "--driver", "inline", "--quiet")
BF16 = ("--set", "precision=fp32,bf16", "--knob", "precision")
TWO_FAMILIES = (*BF16, "--set", "threads=1,2", "--knob", "threads")
SMALLER = ("--set", "batch_size=8,16,32", "--knob", "batch_size")
RESULT = {
    "schema",
    "study",
    "sentence",
    "caveats",
    "failures",
    "refusals",
    "links",
    "unsent",
    "out",
    "study_dir",
    "exit",
}
ANSWERED = RESULT | {
    "pick",
    "is_better",
    "baseline",
    "picks",
    "pareto",
    "environment",
    "provenance",
    "objective",
}


@pytest.fixture
def ended(cli, script, monkeypatch):
    """Search in a world; exit code, the one object on stdout, stderr."""

    def search(world: World, *words, before=lambda number: None, lines=False):
        script.write_text("import argparse\np = argparse.ArgumentParser()\n")
        inline(monkeypatch, world, before=before)
        code, out, err = cli(*WORDS, "--jsonl" if lines else "--json", *words)
        data = json.loads(out.splitlines()[-1]) if lines else json.loads(out)
        assert data["exit"] == code
        assert data["schema"] == "autotune.result/v1"
        return code, data, err

    return search


def failing(at: int, error: Exception):
    def before(number: int) -> None:
        if number == at:
            raise error

    return before


@pytest.mark.parametrize(
    ("world", "words", "code", "outcome"),
    [
        (FAST, BF16, 0, "faster"),
        (SAME, BF16, 1, "nothing_faster"),
        (FAST, (*BF16, "--trials", "3"), 8, "inconclusive"),
        (SAME, (*TWO_FAMILIES, "--trials", "2"), 8, "inconclusive"),
    ],
    ids=["faster", "nothing faster", "not confirmed", "not measured"],
)
def test_each_outcome_says_the_same_in_json_file_and_exit_code(ended, world, words, code, outcome):
    got, data, _err = ended(world, *words)
    best = read_best(data["out"])
    assert (got, data["outcome"], best.outcome) == (code, outcome, outcome)
    assert data["is_better"] is (outcome == "faster")
    assert (best.pick, best.resume) == ("best", data.get("resume"))
    assert bool(data["unsettled"]) is bool(best.resume) is (outcome == "inconclusive")
    assert ("likely" in best.picks) is (code == 8 and world is FAST)


def test_a_likely_pick_is_applied_by_name_alone(ended, cli):
    _code, data, _err = ended(FAST, *BF16, "--trials", "3")
    out = data["out"]
    assert data["resume"].startswith(f"autotune resume {data['study']['label']} --budget ")
    assert data["picks"]["likely"]["knobs"]["precision"] == "bf16"
    assert (
        cli("apply", out, "--diff")[1]
        == "best: your unchanged script\nlikely, not confirmed: --pick likely\n"
    )
    message = cli("apply", out, "--pick", "likely", "--diff")[1]
    assert "1 run, not confirmed" in message
    assert "bf16" in message
    assert "likely" in cli("export", out, "--as", "env", "--pick", "likely")[1]
    (row,) = json.loads(cli("list", "--json")[1])["studies"]
    ratio = data["picks"]["likely"]["speedup"]["value"]
    assert row["answer"] == f"inconclusive: likely {ratio:.2f}x precision=bf16"
    shown = cli("show")[1]
    assert shown.partition("  continue ")[2].partition("\n")[0].strip() == data["resume"]
    assert json.loads(cli("show", "--json")[1])["outcome"] == "inconclusive"


@pytest.mark.parametrize("words", [BF16, (*BF16, "--trials", "2")], ids=["nothing faster", "inconclusive"])
def test_exit_zero_replaces_every_code_that_claims_no_gain(ended, words):
    code, data, _err = ended(SAME, *words, "--exit-zero")
    assert (code, data["exit"]) == (0, 0)
    assert data["outcome"] != "faster"


def test_the_command_of_an_inconclusive_search_continues_it_to_an_answer(ended, cli):
    _code, data, _err = ended(FAST, *BF16, "--trials", "3")
    words = shlex.split(data["resume"])
    assert cli(*words[1:], "--json", "--quiet")[0] == 0


def test_a_budget_that_cannot_measure_the_script_once_does_not_blame_the_script(ended):
    code, data, err = ended(replace(SAME, startup_s=400.0), *BF16)
    assert (code, data["error"]["kind"]) == (2, "UsageError")
    assert "a budget of 240 s ended before train.py was measured once" in err
    assert "one run takes more than" in err
    assert "fails" not in err
    assert "--budget" in data["error"]["hint"]


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize(("world", "code"), [(FAST, 0), (SAME, 1)])
def test_an_answer_has_no_error(ended, world, code, lines):
    got, data, err = ended(world, *BF16, lines=lines)
    assert (got, err) == (code, "")
    assert set(data) >= ANSWERED
    assert "error" not in data


@pytest.mark.parametrize("lines", [False, True])
def test_nothing_that_fits_is_an_error_with_everything_that_was_found(ended, lines):
    code, data, err = ended(COMPUTE_BOUND, *SMALLER, "--max-memory", "1.1GiB", lines=lines)
    assert code == 4
    assert data["error"]["kind"] == "NothingFeasible"
    assert "not even the unchanged train.py" in data["error"]["message"]
    assert data["error"]["hint"] == "raise --max-memory"
    assert set(data) >= ANSWERED | {"error", "effective_batch"}
    assert data["study"]["label"].startswith("train-")
    assert "not even the unchanged train.py" in err


def test_a_script_that_fails_is_an_error_with_its_study(ended):
    code, data, _err = ended(FAILS_IN_BASELINE, *BF16)
    assert (code, data["error"]["kind"]) == (3, "ScriptError")
    assert set(data) >= RESULT | {"error"}
    assert "picks" not in data
    assert set(data["study"]) == {"id", "label"}
    assert "RuntimeError: broken" in data["error"]["message"]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (DiskFull("the disk is full"), 6, "DiskFull"),
        (BackendError("Ray is gone", hint="start it"), 6, "BackendError"),
    ],
)
def test_what_breaks_late_is_an_error_with_the_best_so_far(ended, error: AutotuneError, code, kind):
    got, data, _err = ended(FAST, *BF16, before=failing(LATE, error))
    assert (got, data["error"]["kind"], data["error"]["hint"]) == (code, kind, error.hint)
    assert data["error"]["notes"][0].startswith("the best so far is in")
    assert data["provenance"]["trials"] >= 3


def test_what_breaks_at_once_is_an_error_with_its_study(ended):
    got, data, _err = ended(FAST, *BF16, before=failing(1, BackendError("Ray is gone")))
    assert (got, "picks" in data) == (6, False)
    assert set(data) >= RESULT | {"error"}


def test_an_error_of_ours_is_an_object_as_well(ended):
    code, data, err = ended(FAST, *BF16, before=failing(LATE, RuntimeError("something of ours broke")))
    assert (code, data["error"]["kind"]) == (70, "InternalError")
    assert "something of ours broke" in data["error"]["message"]
    assert "internal error" in err


def test_an_edit_is_reported_by_2_with_the_answer_or_without_one(ended, script):
    def edit(at: int):
        return lambda number: script.write_text("print('another')\n") if number == at else None

    code, data, _err = ended(FAST, *BF16, before=edit(LATE))
    assert (code, "error" in data) == (2, False)
    assert "was changed during the search" in data["caveats"][0]
    code, data, _err = ended(FAST, *BF16, before=edit(1))
    assert (code, data["error"]["kind"], "picks" in data) == (2, "UsageError", False)
    assert set(data) >= RESULT | {"error"}


def test_a_usage_error_has_no_study_yet(ended):
    code, data, _err = ended(FAST, "--knob", "precisoin")
    assert code == 2
    assert set(data) == {"schema", "exit", "error"}


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
@pytest.mark.parametrize(("at", "kind"), [(1, "error"), (LATE, "answer")])
def test_a_signal_is_reported_by_its_code(ended, name, code, at, kind):
    def before(number: int) -> None:
        if number == at:
            signal.raise_signal(getattr(signal, name))

    got, data, _err = ended(FAST, *BF16, before=before)
    assert got == code
    assert ("error" in data) == (kind == "error")
    assert data["study"]["label"].startswith("train-")
