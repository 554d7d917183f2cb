"""`autotune ui` without a server: what is asked of MLflow, and what is said when there is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import ui
from autotune.errors import BackendError, UsageError


def found(monkeypatch: pytest.MonkeyPatch, uri: str, paths: dict[str, str]) -> None:
    monkeypatch.setattr("autotune.store.paths.find_study", lambda name, **more: Path("/nowhere"))
    monkeypatch.setattr("autotune.driver.sync.study_paths", lambda path, **more: (uri, paths))


def test_a_study_that_mlflow_does_not_hold_is_said_with_the_command_that_sends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found(monkeypatch, "sqlite:////nowhere.db", {})
    with pytest.raises(BackendError) as told:
        ui.ui(None, open_it=False)
    assert told.value.hint == "send it: autotune sync --again"
    with pytest.raises(BackendError) as told:
        ui.ui("train-1", open_it=False, tracking_uri="http://colleague:5000")
    assert told.value.hint == "send it: autotune sync train-1 --again --tracking-uri http://colleague:5000"


def test_a_server_of_the_users_is_only_linked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(
        monkeypatch,
        "http://tracker:5000/",
        {"answer": "/#/experiments/1/runs/2?workflowType=machine_learning"},
    )
    assert ui.ui(None, open_it=False) == 0
    assert "http://tracker:5000/#/experiments/1/runs/2" in capsys.readouterr().out


def test_a_server_that_ends_at_once_is_an_error_that_names_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    found(monkeypatch, "sqlite:////nowhere.db", {"answer": "/#/x"})
    with pytest.raises(BackendError, match="code 1"):
        ui.ui(None, open_it=False)


def test_the_page_that_is_asked_for_is_the_one_that_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    found(monkeypatch, "http://tracker:5000", {"answer": "/#/a", "table": "/#/t"})
    ui.ui(None)
    ui.ui(None, page="table")
    assert opened == ["http://tracker:5000/#/a", "http://tracker:5000/#/t"]


def test_a_page_that_is_not_there_is_said_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, "http://tracker:5000", {"answer": "/#/a", "table": "/#/t"})
    with pytest.raises(UsageError, match="no page `searches`") as told:
        ui.ui(None, page="searches", open_it=False)
    assert told.value.hint == "it was searched once only; there is: answer, table"


def test_another_store_is_looked_into_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.store.paths.find_study", lambda name, **more: Path("/nowhere"))
    monkeypatch.setattr(
        "autotune.driver.sync.study_paths", lambda path, *, tracking_uri: (tracking_uri, {"answer": "/#/a"})
    )
    ui.ui(None, open_it=False, tracking_uri="http://colleague:5000/")
    assert capsys.readouterr().out == "answer   http://colleague:5000/#/a\n"
