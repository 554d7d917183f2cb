"""The experiment on forked starts: what it makes of its rows, and that it goes on where it was."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.launch.runner import TrialResult
from autotune.model.trial import Failure, FailureKind, StartMode

RUN = Path(__file__).resolve().parents[2] / "experiments" / "fork_start" / "run.py"


@pytest.fixture(scope="module")
def fork_start():
    spec = importlib.util.spec_from_file_location("fork_start_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(number: int, arm: str, rate: float, startup_s: float, **more: object) -> dict[str, object]:
    start = "fork" if arm == "fork" else "cold"
    kept = {"workload": "w", "round": number, "arm": arm, "start": start, "kind": "ok", "compile": ""}
    return {**kept, "throughput": rate, "startup_s": startup_s, **more}


def test_forks_are_compared_with_cold_runs_of_their_own_round(fork_start) -> None:
    rows = []
    for n, drift in enumerate((1.0, 2.0, 4.0)):
        rows += [
            row(n, "cold", 100.0 * drift, 8.0),
            row(n, "again", 100.0 * drift, 8.0),
            row(n, "fork", 102.0 * drift, 0.5),
        ]
    message = fork_start.summed(rows)
    assert "w fork: first step after 0.50 s (middle half 0.50 to 0.50), 3 runs" in message
    assert "w again over cold: throughput 1.0000 [1.0000, 1.0000], 3 pairs" in message
    assert "w fork over cold: throughput 1.0200 [1.0200, 1.0200], 3 pairs" in message
    assert message[-1] == "0 failed; 0 that were to be forked were started anew"


def test_what_was_not_forked_counts_as_no_fork(fork_start) -> None:
    rows = [row(0, "cold", 100.0, 8.0), row(0, "fork", 50.0, 8.0, start="cold")]
    rows.append({"workload": "w", "round": 1, "arm": "fork", "start": "fork", "kind": "crash_exit"})
    message = fork_start.summed(rows)
    assert not any(line.startswith("w fork") for line in message)
    assert message[-1] == "1 failed; 1 that were to be forked were started anew"


def test_it_goes_on_where_it_was(fork_start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, StartMode]] = []

    class Runner:
        def __init__(self, **_: object) -> None:
            pass

        def run(self, assignment):
            ran.append((assignment.uid.split("-")[1], assignment.start))
            failure = Failure(kind=FailureKind.CRASH_EXIT, message="no")
            yield TrialResult(trial=assignment.trial, outcome=failure, seconds=1.0, start=assignment.start)

        def close(self) -> None:
            ran.append(("closed", StartMode.COLD))

    monkeypatch.setattr(fork_start, "LocalRunner", Runner)
    path = tmp_path / "rows.jsonl"
    requested = SimpleNamespace(rounds=1, workloads=["text_chargpt"], window_s=1.0, compile="")
    fork_start.run(requested, path)
    assert sorted(arm for arm, _ in ran) == ["again", "closed", "cold", "fork"]
    assert {arm for arm, start in ran if start is StartMode.FORK} == {"fork"}
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["crash_exit"] * 3
    ran.clear()
    fork_start.run(SimpleNamespace(**{**vars(requested), "rounds": 2}), path)
    assert len(ran) == 4
