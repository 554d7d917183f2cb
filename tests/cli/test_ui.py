"""`autotune ui` without a server: what is asked of MLflow, and what is said when there is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import ui
from autotune.errors import BackendError


def found(monkeypatch: pytest.MonkeyPatch, uri: str, paths: dict[str, str]) -> None:
    monkeypatch.setattr("autotune.store.paths.find_study", lambda name, **more: Path("/nowhere"))
    monkeypatch.setattr("autotune.driver.sync.study_paths", lambda path: (uri, paths))


def test_a_study_that_mlflow_never_received_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, "sqlite:////nowhere.db", {})
    with pytest.raises(BackendError) as told:
        ui.ui(None, open_it=False)
    assert "autotune sync" in told.value.hint


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
