"""Replayed searches with short budgets: what is compared with what, and how the tables count."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import search_world
import short_budgets

from autotune.model.study import Study
from autotune.search import stages


def line(label: str = "after", **changed: Any) -> dict[str, Any]:
    made = {
        "code": "x", "label": label, "table": "a/cpu", "budget_s": 120.0, "seed": 0, "used": 0.9,
        "candidates": 0.6, "trains": 0.5, "starts_s": 2.0, "tried": 5, "pairs": 2, "claimed": True,
        "outcome": "faster", "unsettled": [], "ratio": [1.5, 1.2, 1.9], "true": 1.4, "named": 0.9,
        "read_fastest": 0.95, "met": 1.0, "baseline": 0.6, "can_win": True, "stopped": "",
    }  # fmt: skip
    return {**made, **changed}


def cells(text: str, row: int = 2) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[row].strip("|").split("|")]


def test_versions_are_compared_on_the_searches_that_all_of_them_have() -> None:
    lines = [line("before"), line("after"), line("after", seed=1)]
    assert short_budgets.shared(lines) == lines[:2]


def test_a_claim_is_false_where_the_table_has_it_slower_and_holds_where_its_interval_does() -> None:
    lines = [line(), line(seed=1, true=0.9), line(seed=2, claimed=False, outcome="nothing_faster")]
    found = cells(short_budgets.table_text(lines))
    assert found[6:11] == ["5.0 (5)", "2 of 3", "1", "1 of 2", "1 / 0"]


def test_only_scripts_that_start_quickly_count_for_the_share_in_steps() -> None:
    lines = [line(), line(seed=1, starts_s=9.0, trains=0.1)]
    assert cells(short_budgets.table_text(lines))[5] == "50%"


def test_differences_are_of_the_same_searches_with_the_error_of_tables() -> None:
    lines = [
        line("before", named=0.8), line(named=0.9), line(table="c", named=0.1),
        line("before", table="b", named=0.8), line(table="b", named=0.8),
    ]  # fmt: skip
    found = cells(short_budgets.against_text(lines, "before"))
    assert found[:4] == ["after", "120 s", "2", "+0.050 ± 0.050"]


def test_why_a_search_without_a_gain_to_find_stays_open_is_counted() -> None:
    lines = [
        line(claimed=False, outcome="inconclusive", unsettled=["Too noisy to tell.", "a=1 reads 1.2x."]),
        line(claimed=False, outcome="nothing_faster", seed=1),
    ]
    assert cells(short_budgets.flat_text(lines))[4:] == ["0", "1", "1", "1", "0", "1"]


def test_a_part_is_left_out_by_name_and_a_name_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("has_winner", "_undisturbed_again"):
        monkeypatch.setattr(stages, name, getattr(stages, name))
    short_budgets.leave_out(["screening after pairs", "repeats of disturbed runs"])
    assert stages.has_winner(Study(spec=search_world.spec())) is True
    monkeypatch.setitem(short_budgets.PARTS, "gone", {"costs:_NOT_THERE": 1})
    with pytest.raises(AttributeError):
        short_budgets.leave_out(["gone"])


def test_lines_are_read_from_the_file_of_their_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_budgets, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    options = Namespace(set="short_budgets")
    assert short_budgets.lines_of(options) == []
    short_budgets.results(options).write_text('{"label": "after"}\n')
    assert short_budgets.lines_of(options) == [{"label": "after"}]
