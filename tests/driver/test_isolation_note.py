"""Why trials cannot have an overlay here is on the screen before the first one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inline_search import inline

from autotune.cli.main import run
from autotune.driver import tune
from autotune.launch.fake import COMPUTE_BOUND
from autotune.launch.workspace.isolation import Isolation

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ("search", "--script", "train.py", "--budget", "2m", "--driver", "inline", "--knob", "precision")


@pytest.mark.parametrize("why", ["an overlay that you mount cannot write to data (me:lab)", ""])
def test_a_search_reports_why_its_trials_are_redirected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    inline(monkeypatch, replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}}))
    monkeypatch.setattr(tune.isolation, "examined", lambda *_: Isolation("redirect", why=why))
    run([*WORDS])
    text = " ".join(capsys.readouterr().err.split())
    assert (f"trials run in redirect mode: {why}" in text) is bool(why)
