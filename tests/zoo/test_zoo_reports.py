"""Public bug reports and the scripts that have their patterns: the list, and the page made of it."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from zoo import ROOT, SCRIPTS, load
from zoo_table import read_results

_SPEC = importlib.util.spec_from_file_location("zoo_reports", ROOT / "experiments" / "zoo" / "reports.py")
assert _SPEC is not None
assert _SPEC.loader is not None
REPORTS: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(REPORTS)
LISTED = REPORTS.load()
ZOO = load()


def test_at_least_25_reports_are_listed_each_with_its_place_and_pattern():
    assert len({(report["repo"], report["number"]) for report in LISTED}) >= 25
    for report in LISTED:
        assert set(report) == {"repo", "number", "title", "pattern", "script", "knob", "right"}, report
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", report["repo"])
        assert report["number"] > 0
        assert report["title"]
        assert report["pattern"].endswith(".")


def test_no_row_is_listed_twice():
    rows = [(report["repo"], report["number"], report["script"], report["knob"]) for report in LISTED]
    assert len(rows) == len(set(rows))


def test_a_report_names_a_script_and_a_knob_that_exist():
    for report in LISTED:
        assert (SCRIPTS / report["script"]).is_file(), report
        assert report["knob"] in ZOO[report["script"]].knobs, report


def test_what_is_right_is_what_the_zoo_expects():
    for report in LISTED:
        expected = ZOO[report["script"]].knobs[report["knob"]]
        outcomes = [
            word for word, there in (("applied", expected.means), ("refused", expected.refused)) if there
        ]
        assert report["right"] == (outcomes[0] if len(outcomes) == 1 else "either"), report


def test_results_of_before_are_those_of_the_listed_cells():
    cells = {(report["script"], report["knob"]) for report in LISTED}
    assert set(REPORTS.results(REPORTS.BEFORE)) == cells


def test_the_page_is_that_of_the_committed_results():
    page = REPORTS.page(LISTED, REPORTS.results(REPORTS.BEFORE), read_results())
    assert REPORTS.PAGE.read_text(encoding="utf-8") == page


def test_a_result_that_is_not_right_stands_in_bold_with_what_was_seen():
    result = {"outcome": "applied", "by": "patch", "reason": "", "problems": ["a | b"], "verdict": "wrong"}
    assert REPORTS.found(result) == "**wrong**: applied by patch; a \\| b"
    assert REPORTS.found({**result, "problems": [], "verdict": "ok"}) == "applied by patch"
    refused = {**result, "outcome": "refused", "reason": "No loader.", "problems": [], "verdict": "refused"}
    assert REPORTS.found(refused) == "**refused**: No loader."
