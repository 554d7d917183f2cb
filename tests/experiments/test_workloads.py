"""The workloads are ordinary scripts: they know nothing of us, and they train."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.inspection.script import script_facts
from autotune.source import loops

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WORKLOADS = sorted((EXPERIMENTS / "workloads").glob("*.py"))
STAMPS = EXPERIMENTS / "e2e_speedup" / "stamps"


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_a_workload_knows_nothing_of_autotune(path: Path) -> None:
    assert "autotune" not in path.read_text().lower()


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_options_can_be_read_and_the_loop_does_not_count_steps(path: Path) -> None:
    facts = script_facts(str(path))
    assert facts.flag("--epochs") is not None
    assert facts.flag("--batch-size").kind == "int"
    # The play's held-out loss is looked at every so many steps, as people do.
    assert facts.hazards == ((loops.STEP_EVALUATED,) if path.stem == "text_chargpt" else ())


def test_data_that_are_kept_here_are_attributed_and_plain_text() -> None:
    message = (EXPERIMENTS / "workloads" / "README.md").read_text()
    for path in sorted((EXPERIMENTS / "workloads" / "data").iterdir()):
        assert path.name in message
        path.read_bytes().decode("ascii")


def stamped(tmp_path: Path, name: str, *words: str, seconds: float = 0.3) -> dict[str, Any]:
    """Run a workload until the stopwatch has seen so many seconds of steps."""
    target = tmp_path / "stamps.json"
    environ = {
        **os.environ,
        "PYTHONPATH": str(STAMPS),
        "STAMPS_FILE": str(target),
        "STAMPS_WARM_S": "0",
        "STAMPS_WINDOW_S": str(seconds),
        "STAMPS_BEGAN": "1.0",
        "OMP_NUM_THREADS": "1",
    }
    script = EXPERIMENTS / "workloads" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "words", "batch"),
    [
        ("text_chargpt", ("--width", "16", "--depth", "1", "--heads", "2", "--length", "16"), 16),
        ("tabular_mlp", ("--eval-every", "5"), 456),
        ("speech_vowels", ("--width", "8", "--batch-size", "27", "--eval-every", "1"), 27),
        pytest.param("events_hawkes", ("--streams", "256", "--width", "4"), 64, marks=pytest.mark.slow),
        pytest.param("photos_colour", ("--size", "16", "--width", "4"), 32, marks=pytest.mark.slow),
        pytest.param("shapes_vit", ("--pictures", "256", "--width", "16"), 32, marks=pytest.mark.slow),
        pytest.param("weblog_sessions", ("--visits", "288", "--width", "4"), 24, marks=pytest.mark.slow),
    ],
)
def test_a_workload_trains_and_the_stopwatch_sees_its_samples(
    tmp_path: Path, name: str, words: tuple[str, ...], batch: int
) -> None:
    seen = stamped(tmp_path, name, *words)
    assert seen["steps"] >= 1
    assert seen["samples"] == seen["steps"] * batch
    assert seen["start_s"] > 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "text_chargpt",
            ("--epochs", "1", "--width", "16", "--depth", "1", "--heads", "2", "--length", "16",
             "--batch-size", "256", "--eval-every", "20"),
            "held-out loss",
        ),
        ("tabular_mlp", ("--epochs", "60", "--lr", "1e-3", "--eval-every", "20"), "held-out accuracy"),
        (
            "speech_vowels",
            ("--epochs", "4", "--width", "16", "--batch-size", "90", "--eval-every", "2"),
            "held-out accuracy",
        ),
        ("events_hawkes", ("--epochs", "2", "--streams", "256", "--width", "8"), "held-out loss"),
        pytest.param(
            "photos_colour",
            ("--epochs", "2", "--size", "16", "--width", "4"),
            "held-out error",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "shapes_vit",
            ("--epochs", "3", "--pictures", "512", "--width", "16", "--depth", "2"),
            "held-out accuracy",
            marks=pytest.mark.slow,
        ),
        (
            "weblog_sessions",
            ("--epochs", "4", "--visits", "288", "--width", "8", "--eval-every", "2"),
            "held-out accuracy",
        ),
    ],
)  # fmt: skip
def test_a_workload_runs_to_its_end_and_says_how_good_it_is(
    tmp_path: Path, name: str, words: tuple[str, ...], message: str
) -> None:
    script = EXPERIMENTS / "workloads" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    figures = [float(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines() if message in line]
    assert len(figures) >= 2
    assert all(map(math.isfinite, figures))
    assert figures[-1] >= 0.1 if "accuracy" in message else figures[-1] <= figures[0]
    assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]
