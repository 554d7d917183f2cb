"""Many trials in one driver: its memory, its descriptors and its scratch stay as they were."""

import gc
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.clock import Clock, SimulatedClock
from autotune.driver import tune
from autotune.driver.rebuild_space import space_of
from autotune.driver.sinks.sync import Syncer
from autotune.launch.fake import FakeRunner
from autotune.launch.process import LocalRunner
from autotune.launch.runner import Runner, TrialResult
from autotune.launch.workspace import isolation as enclosure
from autotune.model import wire
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.study import Study
from autotune.model.trial import Assignment, Proposal, Stage
from autotune.search.costs import Costs
from autotune.search.strategy import Strategy
from autotune.statistics.intervals import mean_interval
from autotune.store.fold import fold
from autotune.store.journal import Journal
from faultbed.common import TRIALS, Case, Child, Count, assignment, end_all, training, users_tree
from faultbed.fake_mlflow import FakeMlflow
from faultbed.search import WORLD, Steady, begin, lived, reported

NAME = "soak"
TITLE = "soak"
MODULES = ("mlflow",)
FACTS_BY_CASE = True
MEMORY_BYTES = 1024
"""A trial may leave so much behind in the driver, by slope."""

RESUME_S = 20.0
"""A resume of the endless search has read its journal by then: two thousand trials."""

LEAST_RATIO = 0.98
"""Where even the upper bound of the speed beside a failing tracker is below it, a promise is broken."""

PAGES_BYTES = 128 << 10
PIECES, PIECE_ROWS = 6, 5
JUMPS_BYTES = 4 << 20
"""What tables of the interpreter may grow by at once, besides what the trials may leave.

Python's table of interned strings, which takes in every part of every path, is made anew once some ten
thousand have passed through it: two megabytes that come once, whatever a trial holds.
"""


def cases() -> list[Case]:
    """Two thousand trials of a cost model in many searches, as many real processes, three hundred of PyTorch.

    Pairs of trainings with and without a failing tracker, and one endless search.
    """
    return [
        {"key": "searches", "what": "searches", "trials": 2000},
        {"key": "processes", "what": "processes", "trials": 2000},
        {"key": "trainings", "what": "trainings", "trials": 300},
        {"key": "beside a failing tracker", "what": "beside a failing tracker", "trials": 20},
        {"key": "one study", "what": "one study", "trials": 2000},
    ]


def sample() -> list[Case]:
    """A tenth of it."""
    return [
        {"key": "searches", "what": "searches", "trials": 200},
        {"key": "processes", "what": "processes", "trials": 20},
    ]


def run(case: Case, folder: Path, *, after_each: Any = None) -> Count:
    """In a child: what this process holds already must not count.

    Args:
        case: What, and how many trials.
        folder: Scratch.
        after_each: Called after every measured piece; for a test that leaves something behind.
    """
    work = {
        "searches": _searches,
        "processes": _processes,
        "trainings": _trainings,
        "beside a failing tracker": _beside_a_failing_tracker,
        "one study": _one_study,
    }[str(case["what"])]
    with Child(lambda: work(int(case["trials"]), folder, after_each).row(), folder / "soak.log") as child:
        if not child.wait(3600.0) or child.answer is None:
            return Count(injected=1, notes=["it did not end: " + (folder / "soak.log").read_text()[-400:]])
        return Count(**child.answer)


class Watch:
    """What a process holds, after every piece of work."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []

    def look(self, trials: int, folder: Path) -> None:
        gc.collect()
        scratch = _size(folder)
        self.rows.append((trials, _memory_bytes(), len(os.listdir("/proc/self/fd")), scratch))  # noqa: PTH208

    def judge(self, count: Count, memory_bytes: int = MEMORY_BYTES) -> None:
        """The first rows are the warming up: caches fill, and the allocator takes its arenas."""
        rows = self.rows[len(self.rows) // 4 :]
        slope = _steady_slope([(r[0], r[1]) for r in rows])
        growth = rows[-1][1] - rows[0][1]
        descriptors = [r[2] for r in rows]
        scratch = _slope([(r[0], r[3]) for r in rows])
        count.facts = {
            "bytes_per_trial": round(slope, 1),
            "growth_mib": round(growth / 2**20, 2),
            "memory_mib": [round(r[1] / 2**20, 2) for r in self.rows[:: max(1, len(self.rows) // 8)]],
            "descriptors": [min(descriptors), max(descriptors)],
            "scratch_bytes_per_trial": round(scratch, 1),
        }
        span = rows[-1][0] - rows[0][0]
        # An allocator takes whole pages: over a few trials these are more than what is looked for.
        if slope > memory_bytes + (PAGES_BYTES / span if span < 150 else 0):
            count.notes.append(f"the driver grows by {slope:.0f} bytes a trial")
        if growth > memory_bytes * span + JUMPS_BYTES:
            count.notes.append(f"the driver has grown by {growth / 2**20:.1f} MiB over {span} trials")
        if max(descriptors[len(descriptors) // 2 :]) > max(descriptors[: len(descriptors) // 2]):
            count.notes.append(f"descriptors grow: {descriptors}")
        if scratch > 0.5:
            count.notes.append(f"scratch grows by {scratch:.0f} bytes a trial")


def _searches(trials: int, folder: Path, after_each: Any) -> Count:
    """One search after the other in one process, each with its journal, strategy, sampler and answer."""
    count, watch, done = Count(), Watch(), 0
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    tempfile.tempdir = str(temporary)
    n = 0
    while done < trials:
        place = folder / f"search-{n}"
        home = begin(place, seed=n % 4)
        end = lived(home)
        if "picks" not in end:
            count.notes.append(f"search {n} ended with {end!r}")
            return count
        done += len(reported(home))
        # A finished study stays on disk as long as its user wants it.
        shutil.rmtree(place)
        if after_each is not None:
            after_each()
        watch.look(done, temporary)
        n += 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(1.0)
    left = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if left:
        count.notes.append(f"threads are left: {left}")
    count.injected = done
    watch.judge(count)
    count.facts["searches"] = n
    count.survived = 0 if count.notes else done
    return count


def _processes(trials: int, folder: Path, after_each: Any) -> Count:
    """One runner, many real processes."""
    root = Path(__file__).resolve().parents[3]
    command = (sys.executable, "-S", str(TRIALS / "reported.py"), str(root), wire.dumps(WORLD), "1")
    runner = LocalRunner(
        study_dir=folder / "study", isolation="redirect", command=lambda _: command, space_floor_bytes=1
    )
    project = users_tree(folder)
    return _ran(runner, lambda uid: assignment(project, uid), trials, folder, after_each)


def _trainings(trials: int, folder: Path, after_each: Any) -> Count:
    """One runner, many real trainings by PyTorch, each as a search would run it."""
    isolation = enclosure.available(str(folder / "study" / "trials"))
    runner = LocalRunner(study_dir=folder / "study", isolation=isolation, space_floor_bytes=1)
    return _ran(runner, lambda uid: training(folder, uid), trials, folder, after_each)


def _ran(
    runner: LocalRunner,
    make: Callable[[str], Assignment],
    trials: int,
    folder: Path,
    after_each: Any,
) -> Count:
    count, watch = Count(), Watch()
    temporary = folder / "tmp"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    sizes: list[int] = []
    for n in range(trials):
        uid = _uid(n)
        ended: list[TrialResult] = list(runner.run(make(uid)))
        if type(ended[0].outcome).__name__ != "Measurement":
            count.notes.append(f"trial {n}: {ended[0].outcome}"[:200])
        count.survivors += len(_left(uid))
        sizes.append(_size(folder / "study" / "trials" / uid))
        if after_each is not None:
            after_each()
        if n % 5 == 4:
            watch.look(n + 1, temporary)
    watch.judge(count)
    count.facts["kept_bytes_per_trial"] = round(statistics.mean(sizes))
    count.injected = trials
    count.survived = 0 if count.notes or count.survivors else trials
    return count


def _uid(n: int) -> str:
    """Of a trial; two runs of this suite must not end each other's processes, which are found by it."""
    return f"t0000-a1-{os.getpid() % 0x1000:03x}{n:03x}"


def _beside_a_failing_tracker(trials: int, folder: Path, _after_each: Any) -> Count:
    """Trainings in pairs, one of each while the tracker is queried repeatedly: what that costs them."""
    count = Count(injected=trials)
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    tempfile.tempdir = str(temporary)
    server = FakeMlflow(folder / "artifacts", "error 500", after=0, delay_s=0.0)
    home = begin(folder, tracking_uri=server.address)
    isolation = enclosure.available(str(home / "trials"))
    runner = LocalRunner(study_dir=home, isolation=isolation, space_floor_bytes=1)
    server.start()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with Journal.open(home, ballast_bytes=0) as journal:
        study = fold(journal.entries(), build=space_of)
        for n in range(trials):
            # By turns, each first as often as second.
            failing = n % 4 in (1, 2)
            syncer = Syncer(journal, lambda: study, tracking_uri=server.address, back_off_s=0.1)
            if failing:
                syncer.start()
            (ended,) = runner.run(training(folder, _uid(n), window_s=1.5))
            if failing:
                syncer.flush(0.0)
            if not isinstance(ended.outcome, Measurement):
                count.notes.append(f"trial {n}: {ended.outcome}"[:200])
                return count
            rates[failing].append(ended.outcome.throughput.value)
    server.stop()
    pairs = zip(rates[True], rates[False], strict=True)
    ratio, low, high = map(math.exp, mean_interval([math.log(a / b) for a, b in pairs]))
    count.facts = {
        "paired_ratio": round(ratio, 4),
        "paired_low": round(low, 4),
        "paired_high": round(high, 4),
        "requests_failed": server.failed,
    }
    if not server.failed:
        count.notes.append("the tracker was never asked")
    if high < LEAST_RATIO:
        count.notes.append(f"beside a failing tracker trials reach {high:.3f} of their speed at most")
    count.survived = 0 if count.notes else trials
    return count


class _Endless(Strategy):
    """Asks the same few configurations again and again."""

    def __init__(self, trials: int) -> None:
        self._trials = trials

    def ask(self, study: Study, remaining_s: float) -> Proposal | None:
        number = len(study.trials)
        if number >= self._trials:
            return None
        fidelity = Costs.of(study).fidelity(Stage.BASELINE, Config(), remaining_s=1e6, reserve_s=0.0)
        config = Config() if number % 4 == 0 else Config({"num_workers": 2})
        stage = Stage.REFINE if number else Stage.BASELINE
        return Proposal(stage=stage, config=config, fidelity=fidelity, reason="it is next")

    def is_finished(self, study: Study, remaining_s: float) -> bool:
        return len(study.trials) >= self._trials


class _Watched(Steady):
    """Looks at this process every so many trials."""

    def __init__(self, inner: Runner, began: Path, watch: Watch, folder: Path) -> None:
        super().__init__(inner, began)
        self._watch, self._folder, self._count = watch, folder, 0

    def run(self, assignment: Assignment) -> Iterator[TrialResult]:
        self._count += 1
        if self._count % 50 == 0:
            self._watch.look(self._count, self._folder)
        yield from super().run(assignment)


def _one_study(trials: int, folder: Path, _after_each: Any) -> Count:
    """One search that goes on and on: it has to hold what it has measured, so this is a size and no leak."""
    count, watch = Count(), Watch()
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    tempfile.tempdir = str(temporary)
    home = begin(folder / "one", budget_s=1e6)
    clock = SimulatedClock()

    def runner(_clock: Clock, began: Path) -> Runner:
        return _Watched(FakeRunner(WORLD, clock), began, watch, temporary)

    with (
        mock.patch.object(tune, "strategy_for", return_value=_Endless(trials)),
        mock.patch.object(tune, "SystemClock", return_value=clock),
    ):
        end = lived(home, runner=runner)
    if "picks" not in end:
        count.notes.append(f"it ended with {end!r}")
    count.injected = len(reported(home))
    watch.judge(count, memory_bytes=1 << 20)
    count.facts["journal_bytes_per_trial"] = round(
        (home / "journal.db").stat().st_size / max(1, count.injected)
    )
    begun = time.monotonic()
    with Journal.open(home, ballast_bytes=0) as journal:
        again = fold(journal.entries(), build=space_of)
    resume_s = time.monotonic() - begun
    count.facts["resume_s"] = round(resume_s, 2)
    if len(again.finished()) != count.injected or resume_s > RESUME_S:
        count.notes.append(f"resuming {len(again.finished())} trials took {resume_s:.1f} s")
    count.survived = 0 if count.notes else count.injected
    return count


def _left(uid: str) -> list[int]:
    from faultbed.common import carrying

    found = carrying(uid)
    end_all(uid)
    return found


def _memory_bytes() -> int:
    """What is this process's own: pages that were shared with its parent do not count when they are freed."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file())


def _steady_slope(points: list[tuple[int, int]]) -> float:
    """What goes on growing: the middle of the slopes of single pieces, so that one jump is in one piece only.

    Where it is too short to be cut, the whole is one piece. Growth in jumps is judged as a whole.
    """
    size = len(points) // PIECES
    if size < PIECE_ROWS:
        return _slope(points)
    return statistics.median(_slope(points[n * size : (n + 1) * size]) for n in range(PIECES))


def _slope(points: list[tuple[int, int]]) -> float:
    """By Theil and Sen: the median of all slopes, which single rows do not move."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :]]
    return statistics.median(slopes) if slopes else 0.0
