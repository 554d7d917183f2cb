"""Run the unchanged workload in pairs of fresh processes and count how often it differs from itself.

    python run.py vision_digits --pairs 20 --window 15

Uses the runner, the launcher and the statistics of a search, so that their noise is what is seen.
"""

import argparse
import datetime
import json
import math
import os
import sys
import tempfile
from pathlib import Path

from autotune.apply.command import build_launch
from autotune.apply.environment import user_environment
from autotune.core.config import Config
from autotune.core.measurement import Measurement
from autotune.core.stats import ratio_interval
from autotune.core.trial import Assignment, Fidelity, Segment
from autotune.launch.process import LocalRunner

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
PAIRS_PER_CLAIM = 5


def throughput(runner, script, number, window_s):
    """Samples per second of one fresh, unchanged run."""
    fidelity = Fidelity(
        min_window_s=window_s,
        max_window_s=window_s,
        min_steps=8,
        target_width=0.0,
        setup_s=120.0,
        deadline_s=120.0 + 3 * window_s,
    )
    launch = build_launch(
        script=str(script),
        args=[],
        python=sys.executable,
        cwd=str(script.parent),
        env=user_environment(os.environ, keep_loggers=False, trial=True),
        changes=[],
        seed=number // 2,
    )
    assignment = Assignment(
        uid=f"t{number:04d}-a1-{os.urandom(3).hex()}",
        study_id="noise_aa",
        attempt=1,
        launch=launch,
        segments=(Segment(trial=number, config=Config(), fidelity=fidelity),),
    )
    ended = list(runner.run(assignment))[-1]
    if not isinstance(ended.outcome, Measurement):
        raise SystemExit(f"run {number} failed: {ended.outcome}")
    return ended.outcome.throughput.value


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=["photos_denoise", "vision_digits"])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--window", type=float, default=15.0, help="seconds measured per run")
    options = parser.parse_args()
    script = WORKLOADS / f"{options.workload}.py"
    logs = []
    with tempfile.TemporaryDirectory() as folder:
        runner = LocalRunner(study_dir=Path(folder))
        for pair in range(options.pairs):
            one, two = (throughput(runner, script, 2 * pair + i, options.window) for i in (0, 1))
            logs.append(math.log(two / one) * (1 if pair % 2 else -1))
            print(f"pair {pair} {math.exp(logs[-1]):.4f}", flush=True)
    everything = ratio_interval(logs)
    windows = [ratio_interval(logs[i : i + PAIRS_PER_CLAIM]) for i in range(len(logs) - PAIRS_PER_CLAIM + 1)]
    excluded = sum(not window.low <= 1.0 <= window.high for window in windows)
    result = {
        "workload": options.workload,
        "date": datetime.date.today().isoformat(),
        "window_s": options.window,
        "cores": len(os.sched_getaffinity(0)),
        "ratios": [math.exp(x) for x in logs],
        "all": {"value": everything.value, "low": everything.low, "high": everything.high, "n": everything.n},
        "windows": len(windows),
        "windows_excluding_one": excluded,
    }
    target = HERE / "results" / f"{options.workload}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "ratios"}))


if __name__ == "__main__":
    main()
