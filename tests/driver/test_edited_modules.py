"""A module that the script imports is edited while a search goes on: it ends as with the script itself."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from inline_search import inline, with_modules

from autotune.cli.main import run
from autotune.launch.fake import COMPUTE_BOUND

FAST = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}})
WORDS = ("search", "--script", "train.py", "--budget", "4m", "--driver", "inline", "--label", "mine")
KNOB = ("--knob", "precision", "--set", "precision=fp32,bf16", "--json", "--quiet")
LATE = 6


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script, and below it a module that every run reports as imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("from models import net\n")
    path = tmp_path / "models" / "net.py"
    path.parent.mkdir()
    path.write_text("one")
    return path


def files(module: Path, text: str = "one") -> dict[str, str]:
    return {str(module): hashlib.sha256(text.encode()).hexdigest()}


def searched(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    code = run(list(words))
    reported = capsys.readouterr()
    return code, json.loads(reported.out), reported.err


def test_it_ends_with_2_and_the_answer_for_what_it_was(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(number: int) -> None:
        if number == LATE:
            module.write_text("two")

    ran = inline(monkeypatch, FAST, before=edit, change=with_modules(files(module)))
    code, data, _err = searched(capsys, *WORDS, *KNOB)
    changed = "models/net.py was changed during the search"
    assert (code, len(ran)) == (2, LATE)
    assert isinstance(data["caveats"], list)
    assert data["caveats"][0] == f"{changed}: this holds for the script before the change."
    code, shown, _err = searched(capsys, "show", "--json")
    assert (code, shown["stopped"]) == (0, "script")
    assert shown["caveats"] == data["caveats"]


def test_it_is_not_resumed_until_it_is_as_it_was(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(number: int) -> None:
        if number == LATE:
            module.write_text("two")

    inline(monkeypatch, FAST, before=edit, change=with_modules(files(module)))
    searched(capsys, *WORDS, *KNOB)
    code, data, err = searched(capsys, "resume", "mine", "--json", "--quiet")
    assert (code, "error" in data) == (2, True)
    assert f"{module}, which the script imports, has changed since study mine began" in err
    module.write_text("one")
    assert searched(capsys, "resume", "mine", "--json", "--quiet")[0] == 0


def test_an_edit_while_the_baseline_runs_ends_it_as_well(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = inline(
        monkeypatch,
        FAST,
        before=lambda n: module.write_text("two") and None,
        change=with_modules(files(module)),
    )
    code, data, _err = searched(capsys, *WORDS, *KNOB)
    assert (code, len(ran)) == (2, 1)
    assert "models/net.py was changed" in json.dumps(data["caveats"])


def test_what_a_trial_writes_and_imports_itself_does_not(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in a layer over the user's files, where nothing of this arrives."""
    made = files(module, "as a run makes it") | {str(module.parent / "generated.py"): "0" * 64}
    os.utime(module, (1.6e9, 1.6e9))
    inline(monkeypatch, FAST, change=with_modules(made))
    assert searched(capsys, *WORDS, *KNOB)[0] == 0
