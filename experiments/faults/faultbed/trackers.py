"""MLflow failing in eight ways: never on a trial's path, and afterwards it holds what the journal holds."""

import http.client
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.clock import Clock, SimulatedClock
from autotune.driver import tune
from autotune.driver.rebuild_space import space_of
from autotune.driver.sinks import sync
from autotune.launch.fake import FakeRunner
from autotune.launch.runner import Runner, TrialResult
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment
from autotune.report.view import summary
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import MLFLOW
from faultbed.common import Case, Child, Count, until
from faultbed.fake_mlflow import MODES, FakeMlflow
from faultbed.search import LIFE_S, STUDY_ID, WORLD, Steady, begin, lived, notes, write_line

NAME = "trackers"
TITLE = "MLflow failing"
MODULES = ("mlflow",)
STARTS = (0, 2, 5, 9, 30)
"""After so many good answers it falls ill: before there is a run, between runs, in the middle of one."""

TRIAL_S = 0.02
LONGEST_TRIAL_S = 4.0
"""A trial of 20 ms that took so long waited for the tracker, whose calls may take five seconds."""


def cases() -> list[Case]:
    """Every mode from five moments on, with the clocks of a real search."""
    return [
        {
            "key": f"{mode}/{after}",
            "mode": mode,
            "after": after,
            "delay_s": 30.0,
            "timeout_s": 5,
            "flush_s": 15.0,
        }
        for after in STARTS
        for mode in MODES
    ]


def sample() -> list[Case]:
    """Every mode once, with short clocks."""
    return [
        {"key": mode, "mode": mode, "after": STARTS[n % 4], "delay_s": 3.0, "timeout_s": 1, "flush_s": 1.5}
        for n, mode in enumerate(MODES)
    ]


class Paced(Runner):
    """The cost model, in real time; notes how long each trial took from question to answer."""

    def __init__(self, inner: Runner, durations: Path) -> None:
        self._inner, self._durations = inner, durations
        self._last = 0.0

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        now = time.monotonic()
        if self._last:
            write_line(self._durations, f"{now - self._last:.4f}")
        self._last = now
        time.sleep(TRIAL_S)
        yield from self._inner.run(assignment)

    def stop(self) -> None:
        self._inner.stop()


def run(
    case: Case, folder: Path, *, patches: tuple[Any, ...] = (), longest_s: float = LONGEST_TRIAL_S
) -> Count:
    """One search with an ill tracker, then `autotune sync` with a healthy one."""
    import mlflow  # noqa: F401 (imported before the search is timed)

    with mock.patch.dict(os.environ, {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(case["timeout_s"])}):
        return _run(case, folder, patches, longest_s)


def _run(case: Case, folder: Path, patches: tuple[Any, ...], longest_s: float) -> Count:
    folder.mkdir(parents=True, exist_ok=True)
    mode, count = str(case["mode"]), Count(injected=1)
    server = FakeMlflow(folder / "artifacts", mode, after=int(case["after"]), delay_s=float(case["delay_s"]))
    home = begin(folder, tracking_uri=server.address)
    gate, requested = folder / "gate", notes(home) / "requested_by"

    def search() -> dict[str, Any]:
        until(gate.exists, LIFE_S)
        with mock.patch.object(http.client.HTTPConnection, "putrequest", _noting(requested)):
            around = [mock.patch.object(tune, "FLUSH_S", float(case["flush_s"])), *patches]
            return lived(home, runner=_paced, sink=None, patches=around)

    # The search is forked before the server has threads.
    with Child(search, folder / "driver.log") as driver:
        server.start()
        gate.touch()
        begun = time.monotonic()
        ended = driver.wait(LIFE_S)
        count.seconds = time.monotonic() - begun
        found = driver.answer or {}
    if not ended or "picks" not in found:
        count.notes.append(f"the search ended with {found!r}: {(folder / 'driver.log').read_text()[-300:]}")
        return count
    threads = Counter(_read(requested))
    if set(threads) - {"autotune-sync"}:
        count.notes.append(f"the tracker was called from {dict(threads)}")
    durations = [float(text) for text in _read(notes(home) / "durations")]
    # The first pause holds the beginning of the search, the store's opening among it.
    slowest = max(durations[1:], default=0.0)
    if slowest > longest_s:
        count.notes.append(f"a trial took {slowest:.2f} s")
    count.facts = {
        "unsent": found["unsent"],
        "requests": server.requests,
        "failed": server.failed,
        "slowest_trial_s": round(slowest, 3),
    }
    if mode != "comes back" and not server.failed and mode != "refused":
        count.notes.append("the tracker did not fail")
    server.heal()
    unsent = sync.sync_study(home, 60.0)
    if unsent:
        count.notes.append(f"{unsent} rows were not sent by sync")
    _compare(home, server, count)
    server.stop()
    count.survived = int(not count.notes and not count.lost and not count.duplicated)
    return count


def _paced(_clock: Clock, began: Path) -> Runner:
    # A clock of its own: simulated seconds of trials, beside the real ones of the search.
    return Paced(Steady(FakeRunner(WORLD, SimulatedClock()), began), began.with_name("durations"))


def _noting(path: Path) -> Any:
    real = http.client.HTTPConnection.putrequest

    def putrequest(connection: Any, *what: Any, **named: Any) -> Any:
        write_line(path, threading.current_thread().name)
        return real(connection, *what, **named)

    return putrequest


def _read(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _compare(home: Path, server: FakeMlflow, count: Count) -> None:
    """Run for run and figure for figure, what the journal holds."""
    with Journal.open(home, ballast_bytes=0) as journal:
        study = fold(journal.entries(), build=space_of)
        pending = journal.unsent(MLFLOW)
    expected = {f"{STUDY_ID}/t{trial.number:04d}a": trial for trial in study.finished()}
    uids = Counter(run["tags"].get("autotune.trial_uid", "") for run in server.runs.values())
    parents = uids.pop("", 0)
    count.lost = len(set(expected) - set(uids)) + int(parents == 0)
    count.duplicated = sum(n - 1 for n in uids.values()) + max(0, parents - 1)
    if pending:
        count.notes.append(f"{pending} rows are open")
    if set(uids) - set(expected):
        count.notes.append("there are runs of trials that the journal does not hold")
    for run in server.runs.values():
        trial = expected.get(run["tags"].get("autotune.trial_uid", ""))
        if run["info"]["status"] == "RUNNING":
            count.notes.append(f"run {run['info']['run_name']} was never ended")
        if trial is None:
            continue
        seen = trial.outcome
        throughput = [p["value"] for k, p in _latest(run).items() if k.startswith("throughput_")]
        wanted = [summary.significant(seen.throughput.value)] if isinstance(seen, Measurement) else []
        if throughput[:1] != wanted[:1] and isinstance(seen, Measurement):
            count.notes.append(f"trial {trial.number}: {throughput} instead of {wanted}")
        losses = [(p["step"], p["timestamp"]) for p in run["metrics"].get("loss", ())]
        if len(losses) != len(set(losses)):
            count.notes.append(f"trial {trial.number}: points of its loss are there twice")


def _latest(run: dict[str, Any]) -> dict[str, Any]:
    return {name: points[-1] for name, points in run["metrics"].items()}
