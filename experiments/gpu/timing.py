"""Is a step timed right while the device works behind the host's back?

    python timing.py                       # small_steps gpt2 resnet50, 3 pairs each: about 8 minutes
    python timing.py --device cpu --tiny   # does it run at all?

The same script in fresh processes in turn: as a trial measures it, by events and without waiting; and by
a stopwatch that waits for the device where its window begins and ends. Their ratio should be 1. Two
further figures show what is avoided: the trial's own steps by the host's stamps, and a stopwatch that
waits after every step.
"""

import sys

from common import FULL, SMALL, WORKLOADS, Trials, interval, parsed, parser, stopwatch, summary_of, write

NAMES = ("small_steps", "gpt2", "resnet50")
TOLERANCE = 0.03


def host_only(trials):
    """Samples per second of the window by the stamps of the host alone, unsynchronised."""
    reported, _ = trials.seen
    closed = next(iter(reported.closed.values()))
    rows = [r for r in reported.rows if closed.begin_ns < r.t_ns <= closed.end_ns]
    seconds = (rows[-1].t_ns - closed.begin_ns) / 1e9
    return sum(r.samples for r in rows) / seconds, closed.clock


def compared(name, trials, options):
    """Pairs of one workload."""
    args = (SMALL if options.tiny else FULL)[name]
    command = [sys.executable, str(WORKLOADS / f"{name}.py"), *args]
    window_s, warm_s = (0.6, 0.2) if options.tiny else (options.window, 4.0)
    pairs, runs = [], []
    for pair in range(options.pairs):
        found = {}
        for arm in ("trial", "stopwatch") if pair % 2 == 0 else ("stopwatch", "trial"):
            if arm == "trial":
                outcome = trials.workload(name, window_s=window_s)
                found["trial"] = summary_of(outcome)
                if found["trial"]["kind"] != "ok":
                    return {"failed": found["trial"]}, False
                found["host_only"], found["clock"] = host_only(trials)
            else:
                found["stopwatch"] = stopwatch(command, warm_s=warm_s, window_s=window_s)
        pairs.append(found["trial"]["throughput"] / found["stopwatch"])
        runs.append(found)
    each = stopwatch(command, warm_s=warm_s, window_s=window_s, sync="step")
    ratio = interval(pairs)
    reported = {
        "ratio": ratio,
        "clocks": sorted({run["clock"] for run in runs}),
        "host_only_ratio": interval([run["host_only"] / run["stopwatch"] for run in runs]),
        "waiting_each_step_ratio": each / runs[-1]["stopwatch"],
        "runs": runs,
    }
    return reported, abs(ratio["value"] - 1) <= TOLERANCE


def main(words=None):
    options = parsed(parser(__doc__, pairs=3, window=8.0), words)
    options.pairs = 1 if options.tiny else options.pairs
    names = options.workloads or (NAMES[:1] if options.tiny else NAMES)
    result, fine = {}, []
    with Trials(options) as trials:
        for name in names:
            result[name], right = compared(name, trials, options)
            fine.append(right)
            print(name, result[name].get("ratio") or result[name], flush=True)
    ok = None if options.device == "cpu" else all(fine)
    return write("timing", result, options, ok=ok, note=f"trial over stopwatch within {TOLERANCE:.0%}")


if __name__ == "__main__":
    raise SystemExit(main())
