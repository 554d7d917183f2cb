"""The suite says 0 only where all of it was run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from faultbed import documents
from faultbed.common import Count

RUN = Path(__file__).parents[2] / "experiments" / "faults" / "run.py"


@pytest.fixture(scope="module")
def suite() -> Any:
    spec = importlib.util.spec_from_file_location("faults_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("left_out", "clean", "code"),
    [(0, True, 0), (1, True, 1), (0, False, 1)],
    ids=["all", "one left", "broken"],
)
def test_a_suite_that_was_not_run_to_its_end_is_none_that_passed(
    suite: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    left_out: int,
    clean: bool,
    code: int,
) -> None:
    cases = documents.sample()
    with (tmp_path / "documents.sample.jsonl").open("w") as file:
        for case in cases[left_out:]:
            row = {"key": case["key"], **Count(injected=1, survived=int(clean)).row(), "sources": "x"}
            file.write(json.dumps(row) + "\n")
    words = ["run.py", "documents", "--list", "--sample", "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert suite.main() == code
    reported = capsys.readouterr().err
    assert (f"documents: not run: {cases[0]['key']}" in reported) == bool(left_out)
