"""Does the interval of a short window hold what a long real run has on the whole?

    python long_runs.py --record vision_digits --seconds 180   # one long run as it is, kept
    python long_runs.py --list                                 # what short windows of the kept runs say

Windows of 4, 10 and 20 s begin at random places of a recorded run and go through the recorder and the fold
that ship, as `run.py` has it for simulated steps. Held is the rate of the whole run, many windows long.
"""

import argparse
import datetime
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
KEPT = HERE / "results" / "long"
sys.path[:0] = [str(HERE), str(HERE.parent / "claims")]

import coverage_process as process  # noqa: E402 - neighbours of this file
import proofs  # noqa: E402

WINDOWS_S = (4.0, 10.0, 20.0)
DRAWS = 200
TENS_US = 1e-5
_ROOM_S = 2.0
"""Beyond its window a run warms up."""


def record(name, seconds):
    """One long run of a workload as it is: a file with the time of every step, and of the evaluation in it.

    In tens of microseconds.
    """
    import recording

    with tempfile.TemporaryDirectory() as folder:
        runner = recording.Recording(WORKLOADS / f"{name}.py", seconds, Path(folder))
        line = runner.run(0)
        if line is None:
            raise SystemExit("the run failed; nothing is kept of it")
        told, _ = runner.seen
        closed = next(iter(told.closed.values()))
    rows = [row for row in told.rows if closed.begin_ns <= row.t_ns <= closed.end_ns]
    periods = [round((b.t_ns - a.t_ns) / 1e9 / TENS_US) for a, b in itertools.pairwise(rows)]
    kept = {
        "workload": name,
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


def held(periods_s, window_s, *, asides_s=None, draws=DRAWS):
    """How many windows of this length hold the rate of the whole, and of how many; None if it is too short.

    Windows overlap, so they are fewer than they seem. `asides_s` is what of each step is an evaluation and
    not in the rate; none of it where it was not kept.
    """
    asides_s = [0.0] * len(periods_s) if asides_s is None else asides_s
    whole_s = sum(periods_s)
    truth = process.BATCH * len(periods_s) / (whole_s - sum(asides_s))
    ends = list(itertools.accumulate(periods_s))
    last = next((k for k, end in enumerate(ends) if whole_s - end < window_s + _ROOM_S), 0)
    if last < 2:
        return None
    hits = 0
    for k in range(draws):
        begin = random.Random(f"{window_s}/{k}").randrange(last)
        both = itertools.islice(zip(periods_s, asides_s, strict=True), begin, None)
        steps = (process.Step(period_s=p, aside_s=aside) for p, aside in both)
        found = process.run(steps, process.fidelity(window_s)).measurement.throughput
        hits += found.low <= truth <= found.high
    return hits, draws


def table():
    """Rows for people."""
    lines = ["| run | seconds | others' cores | window | whole run inside | runs are so many windows |"]
    lines.append("|---|---|---|---|---|---|")
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        periods_s = [n * TENS_US for n in kept["steps"]]
        asides_s = [n * TENS_US for n in kept["asides"]] if "asides" in kept else None
        whole_s = sum(periods_s)
        for window_s in WINDOWS_S:
            found = held(periods_s, window_s, asides_s=asides_s)
            if found is not None:
                share = found[0] / found[1]
                lines.append(
                    f"| {kept['workload']} | {whole_s:.0f} | {kept['others_cores'] or 0.0:.2f} | "
                    f"{window_s:g} s | "
                    f"{share:.1%} of {found[1]} | {whole_s / window_s:.0f} |"
                )
    return lines


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", choices=sorted(p.stem for p in WORKLOADS.glob("*.py")))
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args(words)
    if chosen.record:
        print(record(chosen.record, chosen.seconds))
    if chosen.list:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
