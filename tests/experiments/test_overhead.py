"""The experiment on overhead: it runs, and its hooks really go and come back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "experiments" / "overhead" / "run.py"


@pytest.mark.torch
@pytest.mark.parametrize("arm", ["trial", "apply"])
def test_hooks_are_taken_out_and_put_back_and_their_cost_is_written_down(tmp_path: Path, arm: str) -> None:
    command = [sys.executable, str(RUN), "--steps-ms", "1", "--blocks", "6", "--block-s", "0.03"]
    command += ["--apply"] if arm == "apply" else []
    ended = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    (written,) = tmp_path.glob("*.json")
    reported = json.loads(written.read_text())
    assert reported["arm"] == arm
    (row,) = reported["steps"]
    value, low, high = row["overhead_us"]
    assert low <= value <= high
    assert (row["blocks"], row["steps_per_block"]) == (6, 30)
    assert row["step_ms"] > 0
