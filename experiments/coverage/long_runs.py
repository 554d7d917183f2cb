"""Does the interval of short windows hold what a long real run has on the whole?

    python long_runs.py --record vision_digits --seconds 300   # one long unchanged run, kept
    python long_runs.py --record speech_vowels --seconds 300 -- --epochs 4000
    python long_runs.py --list                                 # what short windows of the kept runs say

Windows of 4, 10 and 20 s begin at random places of a recorded run and go through the recorder and the fold
that ship, as `run.py` has it for simulated steps. Held is the rate of the whole run, many windows long: by
the interval of one window, and by the interval that a report gives of several runs, here of 3, 5 and 8
windows.
"""

import argparse
import datetime
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path

from autotune.compare.amortised_rate import mean_rate

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
KEPT = HERE / "results" / "long"
sys.path[:0] = [str(HERE), str(HERE.parent / "claims")]

import coverage_process as process  # noqa: E402 (needs the path set above)
import proofs  # noqa: E402

WINDOWS_S = (4.0, 10.0, 20.0)
TOGETHER = (3, 5, 8)
"""Windows that one mean is made of."""
DRAWS = 200
MEANS = 4000
STARTS = 1000
"""Windows that means are drawn from."""
TENS_US = 1e-5
_ROOM_S = 2.0
"""Beyond its window a run warms up."""


def record(name, seconds, args=()):
    """One long run of an unchanged workload: a file with the time of every step, and of the evaluation in it.

    In tens of microseconds.
    """
    import recording

    with tempfile.TemporaryDirectory() as folder:
        runner = recording.Recording(WORKLOADS / f"{name}.py", seconds, Path(folder), args)
        line = runner.run(0)
        if line is None:
            raise SystemExit("the run failed; nothing is kept of it")
        reported, _ = runner.seen
        closed = next(iter(reported.closed.values()))
    rows = [row for row in reported.rows if closed.begin_ns <= row.t_ns <= closed.end_ns]
    periods = [round((b.t_ns - a.t_ns) / 1e9 / TENS_US) for a, b in itertools.pairwise(rows)]
    kept = {
        "workload": name,
        "args": list(args),
        "date": datetime.date.today().isoformat(),
        "machine": proofs.machine(),
        "others_cores": line["foreign"],
        "flags": line["flags"],
        "steps": periods,
        # Evaluations before a step, which a search takes off.
        "asides": [round(max(0, row.aside_ns) / 1e9 / TENS_US) for row in rows[1:]],
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}.json"
    path.write_text(json.dumps(kept) + "\n")
    return path


class LongRun:
    """A recorded run, for windows to begin anywhere in it.

    Args:
        kept: As `record` left it. Evaluations that were not kept are taken for none.
    """

    def __init__(self, kept):
        self.periods_s = [n * TENS_US for n in kept["steps"]]
        self.asides_s = [n * TENS_US for n in kept.get("asides", ())] or [0.0] * len(self.periods_s)
        self.whole_s = sum(self.periods_s)
        self.truth = process.BATCH * len(self.periods_s) / (self.whole_s - sum(self.asides_s))
        self._ends = list(itertools.accumulate(self.periods_s))

    def starts(self, window_s):
        """How many of its steps a window may begin with; too few of them where it is too short."""
        return next((k for k, end in enumerate(self._ends) if self.whole_s - end < window_s + _ROOM_S), 0)

    def window(self, begin, window_s):
        """What a trial says that begins with this step."""
        both = itertools.islice(zip(self.periods_s, self.asides_s, strict=True), begin, None)
        steps = (process.Step(period_s=p, aside_s=aside) for p, aside in both)
        return process.run(steps, process.fidelity(window_s)).measurement.throughput


def held(run, window_s, *, draws=DRAWS):
    """How many windows of this length hold the rate of the whole, and of how many; None if it is too short.

    Windows overlap, so they are fewer than they seem.
    """
    last = run.starts(window_s)
    if last < 2:
        return None
    hits = 0
    for k in range(draws):
        found = run.window(random.Random(f"{window_s}/{k}").randrange(last), window_s)
        hits += found.low <= run.truth <= found.high
    return hits, draws


def held_together(run, window_s, count, *, means=MEANS, draws=STARTS):
    """The same of the mean of so many windows, as a report gives it of so many runs.

    Each window begins wherever chance has it, so that they are independent of each other.
    """
    last = run.starts(window_s)
    if last < 2:
        return None
    windows = [run.window(random.Random(f"{window_s}/{k}").randrange(last), window_s) for k in range(draws)]
    runs = [(window.value, window) for window in windows]
    hits = 0
    for k in range(means):
        mean = mean_rate(random.Random(f"{window_s}/{count}/{k}").choices(runs, k=count), "samples/s")
        hits += mean.low <= run.truth <= mean.high
    return hits, means


def _share(found):
    return "-" if found is None else f"{found[0] / found[1]:.1%}"


def table():
    """Rows for people."""
    lines = ["| run | seconds | others' cores | window | one | " + " | ".join(map(str, TOGETHER)) + " |"]
    lines.append("|---|---|---|---|---|" + "---|" * len(TOGETHER))
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        run = LongRun(kept)
        for window_s in WINDOWS_S:
            shares = [held(run, window_s), *(held_together(run, window_s, k) for k in TOGETHER)]
            lines.append(
                f"| {kept['workload']} | {run.whole_s:.0f} | {kept['others_cores'] or 0.0:.2f} | "
                f"{window_s:g} s | " + " | ".join(map(_share, shares)) + " |"
            )
    return lines


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", choices=sorted(p.stem for p in WORKLOADS.glob("*.py")))
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("args", nargs="*", help="of the workload, after --")
    chosen = parser.parse_args(words)
    if chosen.record:
        print(record(chosen.record, chosen.seconds, chosen.args))
    if chosen.list:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
