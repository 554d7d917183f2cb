"""The experiment on planted bottlenecks: what it counts, and that its figures stay with what made them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "bottlenecks"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run.py`, which keeps its results elsewhere and runs nothing."""
    spec = importlib.util.spec_from_file_location("bottlenecks_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bottlenecks_run", module)
    spec.loader.exec_module(module)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(module, "RAW", tmp_path / "results" / "raw.jsonl")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "one", lambda *_: {"verdict": "input"})
    return module


def called(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    module.main()


@pytest.mark.thorough
def test_what_is_kept_is_looked_at_and_not_written_again(
    planted: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called(planted, monkeypatch)
    table = planted.HERE / "results" / "confusion.json"
    kept = table.read_text()
    assert json.loads(kept)["runs"] == 18
    assert json.loads(kept)["matrix"]["input"] == {"input": 3}
    assert json.loads(kept)["made"][0]["sources"] == planted.sources()
    # Who looks at it on another day and machine does not make it anew.
    monkeypatch.setattr(planted, "stamp", lambda: {"sources": planted.sources(), "cpu": "another"})
    called(planted, monkeypatch, "--table")
    assert table.read_text() == kept
    assert "other sources" not in capsys.readouterr().out


def test_figures_of_other_sources_are_not_mixed_in(
    planted: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called(planted, monkeypatch)
    monkeypatch.setattr(planted, "sources", lambda: "another")
    with pytest.raises(SystemExit, match="--new"):
        called(planted, monkeypatch, "--repeats", "2")
    called(planted, monkeypatch, "--table")
    assert "other sources" in capsys.readouterr().out
    called(planted, monkeypatch, "--new")
    lines = planted.RAW.read_text().splitlines()
    assert len(lines) == 18
    assert {json.loads(line)["made"]["sources"] for line in lines} == {"another"}
