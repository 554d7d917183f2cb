"""Every ending of a search under --json: one object, the documented one, and what went wrong in it."""

import json
import signal
from dataclasses import replace

import pytest
from inline_search import inline

from autotune.errors import AutotuneError, BackendError, DiskFull
from autotune.launch.fake import COMPUTE_BOUND, FAILS_IN_BASELINE, World

FAST = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})
SAME = replace(COMPUTE_BOUND, gains={}, process_noise=0.0)
LATE = 6
"""A run in the middle of confirmation."""
WORDS = ("search", "--script", "train.py", "--budget", "4m", "--driver", "inline", "--quiet")
BF16 = ("--set", "precision=fp32,bf16", "--knob", "precision")
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
    assert "not even train.py as it is" in data["error"]["message"]
    assert data["error"]["hint"] == "raise --max-memory"
    assert set(data) >= ANSWERED | {"error", "effective_batch"}
    assert data["study"]["label"].startswith("train-")
    assert "not even train.py" in err


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
        (DiskFull("the disk is full"), 5, "DiskFull"),
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


def test_an_edit_is_told_by_2_with_the_answer_or_without_one(ended, script):
    def edit(at: int):
        return lambda number: script.write_text("print('another')\n") if number == at else None

    code, data, _err = ended(FAST, *BF16, before=edit(LATE))
    assert (code, "error" in data) == (2, False)
    assert "was changed while it was searched" in data["caveats"][0]
    code, data, _err = ended(FAST, *BF16, before=edit(1))
    assert (code, data["error"]["kind"], "picks" in data) == (2, "UsageError", False)
    assert set(data) >= RESULT | {"error"}


def test_a_usage_error_has_no_study_yet(ended):
    code, data, _err = ended(FAST, "--knob", "precisoin")
    assert code == 2
    assert set(data) == {"schema", "exit", "error"}


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
@pytest.mark.parametrize(("at", "kind"), [(1, "error"), (LATE, "answer")])
def test_a_signal_is_told_by_its_code(ended, name, code, at, kind):
    def before(number: int) -> None:
        if number == at:
            signal.raise_signal(getattr(signal, name))

    got, data, _err = ended(FAST, *BF16, before=before)
    assert got == code
    assert ("error" in data) == (kind == "error")
    assert data["study"]["label"].startswith("train-")
