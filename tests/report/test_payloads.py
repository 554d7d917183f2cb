"""Every form of one answer is frozen in a file, so that a change of structure shows its effects."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden
import pages
import pytest
import report_study

from autotune.answer.pick import answer
from autotune.driver import result
from autotune.export.best_config import write_best
from autotune.report.html.page import report_html
from autotune.report.mlflow import artifacts, run_content
from autotune.report.text import study_notes
from autotune.report.view import bottleneck_text, summary
from autotune.report.view.report_data import report_data
from autotune.report.view.study_view import View

STUDY = report_study.made(12, ablations=2)
ANSWER = answer(STUDY)


def as_json(data: Any) -> str:
    return json.dumps(data, indent=1, sort_keys=True, default=str) + "\n"


def test_best_yaml_is_as_frozen(tmp_path: Path) -> None:
    write_best(tmp_path / "best.yaml", STUDY, ANSWER, lambda _config: ())
    golden.check("best.yaml", (tmp_path / "best.yaml").read_text(encoding="utf-8"))


def test_the_json_of_a_search_is_as_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "changes_of", lambda _study: lambda _config: ())
    end: Any = SimpleNamespace(
        study=STUDY, answer=ANSWER, links={}, unsent=0, study_dir=Path("/s"), exit_code=0
    )
    golden.check("search.json", as_json(result.result_data(end, 0)))


def test_the_data_of_a_report_is_as_frozen() -> None:
    golden.check("report.json", as_json(report_data(View.of(STUDY, ANSWER))))


def test_the_text_of_a_report_is_as_frozen() -> None:
    body = next(e for e in pages.read(report_html(STUDY, ANSWER)).all("body"))
    texts = [e.text for e in body.all("p", "h1", "h2", "h3", "li", "td", "th", "dt", "dd", "text", "summary")]
    golden.check("report.txt", "\n".join(" ".join(text.split()) for text in texts if text.strip()) + "\n")


def test_what_mlflow_receives_is_as_frozen() -> None:
    sent = {
        "name": summary.run_name(STUDY, ANSWER),
        "figures": run_content.study_figures(STUDY, ANSWER),
        "front": artifacts.front_csv(STUDY, ANSWER),
        "note": study_notes.note(STUDY, ANSWER, held_back=bottleneck_text.why_lines(STUDY, ANSWER)),
    }
    golden.check("mlflow.json", as_json(sent))
