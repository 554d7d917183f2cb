"""How much sooner does a forked trial train, and does it train as fast? Threes of runs, interleaved.

    python run.py                             # two workloads, 30 rounds each: about an hour and a half
    python run.py --rounds 10 --window-s 4    # a first look
    python run.py --list                      # what the rows so far say; runs nothing

A round is three processes of the same configuration, in an order drawn by lot: two that are started anew and
one that is forked from a server. What the two differ by is the noise that the third has to be seen against.
Every process is a row of `results/rows-<host>.jsonl`, written when it has ended; a run that is stopped goes
on where it was. The machine has to be idle.
"""

import argparse
import datetime
import json
import math
import os
import platform
import random
import statistics
import sys
import tempfile
from pathlib import Path

from autotune.inspection.host import host_facts
from autotune.launch.process import LocalRunner
from autotune.model.change import Change, Patch
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Fidelity, Segment, StartMode
from autotune.space.launch_command import build_launch
from autotune.space.training_environment import user_environment
from autotune.statistics.intervals import ratio_interval

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
LONG = {
    "text_chargpt": ["--epochs", "1000", "--batch-size", "16"],
    "vision_digits": ["--epochs", "1000", "--batch-size", "32"],
}
"""The two by default, with arguments by which they last as long as anybody wants to measure."""

SCRIPTS = LONG | {
    name: []
    for name in (
        *("events_hawkes", "photos_colour", "photos_denoise", "shapes_vit"),
        *("speech_vowels", "tabular_mlp", "weblog_sessions"),
    )
}
ARMS = {"cold": StartMode.COLD, "again": StartMode.COLD, "fork": StartMode.FORK}
SETUP_S = 300.0


def assignment(name, arm, number, requested):
    """One process of one arm; the seed is the round's, so that all three train alike."""
    fidelity = Fidelity(
        min_window_s=requested.window_s,
        max_window_s=requested.window_s,
        min_steps=6,
        target_width=0.0,
        setup_s=SETUP_S,
        deadline_s=SETUP_S + 4 * requested.window_s,
    )
    script = WORKLOADS / f"{name}.py"
    mode = requested.compile
    changes = [Change(knob="compile_mode", value=mode, spelling=Patch())] if mode else []
    launch = build_launch(
        script=str(script),
        args=SCRIPTS[name],
        python=sys.executable,
        cwd=str(script.parent),
        env=user_environment(os.environ, keep_loggers=False, trial=True),
        changes=changes,
        seed=number,
    )
    return Assignment(
        uid=f"t{number:04d}-{arm}-{os.urandom(3).hex()}",
        study_id="fork_start",
        attempt=1,
        launch=launch,
        segments=(Segment(trial=number, config=Config(), fidelity=fidelity),),
        start=ARMS[arm],
    )


def reported(name, arm, number, place, ended, requested):
    """One row."""
    row = {
        "workload": name,
        "round": number,
        "arm": arm,
        "place": place,
        "start": ended.start.value,
        "seconds": ended.seconds,
        "notes": list(ended.notes),
        "window_s": requested.window_s,
        "compile": requested.compile,
        "load": os.getloadavg()[0],
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    measured = ended.outcome
    if not isinstance(measured, Measurement):
        return {**row, "kind": measured.kind.label, "message": measured.message}
    return {
        **row,
        "kind": "ok",
        "startup_s": measured.startup_s,
        "compile_s": measured.compile_s,
        "throughput": measured.throughput.value,
        "low": measured.throughput.low,
        "high": measured.throughput.high,
        "unit": measured.throughput.unit,
        "pss": measured.memory.pss,
        "foreign_cpu_frac": measured.contamination.foreign_cpu_frac,
    }


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(requested, path):
    """Every process that has no row yet."""
    done = {(r["workload"], r["round"], r["arm"], r["compile"]) for r in rows_of(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fork-start-") as folder:
        runner = LocalRunner(study_dir=Path(folder) / "study")
        try:
            for number in range(requested.rounds):
                for name in requested.workloads:
                    arms = list(ARMS)
                    random.Random(f"{name}/{number}").shuffle(arms)
                    for place, arm in enumerate(arms):
                        if (name, number, arm, requested.compile) in done:
                            continue
                        (ended,) = runner.run(assignment(name, arm, number, requested))
                        row = reported(name, arm, number, place, ended, requested)
                        with path.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        print(
                            f"{name} {number} {arm}: {row.get('startup_s', row.get('message'))}", flush=True
                        )
        finally:
            runner.close()


def summed(rows):
    """What the rows say, for each workload: start-up by arm, and throughput against the first cold run."""
    lines = []
    for name in sorted({r["workload"] for r in rows}):
        mine = [r for r in rows if r["workload"] == name and r["kind"] == "ok"]
        by_round = {}
        for r in mine:
            if r["arm"] != "fork" or r["start"] == "fork":
                by_round.setdefault(r["round"], {})[r["arm"]] = r
        for arm in ARMS:
            starts = [rs[arm]["startup_s"] for rs in by_round.values() if arm in rs]
            if starts:
                low, middle, high = quantiles(starts)
                lines.append(
                    f"{name} {arm}: first step after {middle:.2f} s (middle half {low:.2f} to {high:.2f}), "
                    f"{len(starts)} runs"
                )
        for arm in ("again", "fork"):
            logs = [
                math.log(rs[arm]["throughput"] / rs["cold"]["throughput"])
                for rs in by_round.values()
                if arm in rs and "cold" in rs
            ]
            if logs:
                r = ratio_interval(logs)
                span = f"{r.value:.4f} [{r.low:.4f}, {r.high:.4f}]"
                lines.append(f"{name} {arm} over cold: throughput {span}, {r.n} pairs")
    if len({r["workload"] for r in rows}) > 1:
        lines += everywhere(rows)
    failed = [r for r in rows if r["kind"] != "ok"]
    anew = [r for r in rows if r["arm"] == "fork" and r["start"] != "fork"]
    lines.append(f"{len(failed)} failed; {len(anew)} that were to be forked were started anew")
    return lines


def everywhere(rows):
    """All workloads together: every round of each is a pair."""
    rounds = {}
    for r in rows:
        if r["kind"] == "ok" and (r["arm"] != "fork" or r["start"] == "fork"):
            rounds.setdefault((r["workload"], r["round"]), {})[r["arm"]] = r["throughput"]
    lines = []
    for arm in ("again", "fork"):
        logs = [math.log(rs[arm] / rs["cold"]) for rs in rounds.values() if arm in rs and "cold" in rs]
        if logs:
            r = ratio_interval(logs)
            span = f"{r.value:.4f} [{r.low:.4f}, {r.high:.4f}]"
            lines.append(f"all workloads, {arm} over cold: throughput {span}, {r.n} pairs")
    return lines


def quantiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--workloads", nargs="*", choices=sorted(SCRIPTS), default=sorted(LONG))
    made.add_argument("--rounds", type=int, default=30)
    made.add_argument("--window-s", type=float, default=20.0, help="measured in each process")
    made.add_argument("--compile", default="", metavar="MODE", help="with this mode of torch.compile")
    made.add_argument("--out", type=Path, default=HERE / "results")
    made.add_argument("--list", action="store_true", help="sum the rows up, run nothing")
    requested = made.parse_args()
    host = host_facts()
    name = "".join(c if c.isalnum() else "-" for c in f"{host.cpu_model}-{host.cpus}").lower()
    path = requested.out / f"rows-{name}.jsonl"
    if not requested.list:
        run(requested, path)
    rows = rows_of(path)
    print(f"{host.cpu_model}, {host.cpus} CPUs, Python {platform.python_version()}")
    for mode in sorted({r["compile"] for r in rows}):
        print(f"compile: {mode or 'no'}")
        for line in summed([r for r in rows if r["compile"] == mode]):
            print(f"  {line}")


if __name__ == "__main__":
    main()
