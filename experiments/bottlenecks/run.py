"""Plant bottlenecks of known kind and strength, ask for the verdict, and count: a confusion matrix.

    python run.py                 # everything once: 18 runs of about 12 s
    python run.py --repeats 3 --limit 10m   # go on until there are three of each, or until the time is over
    python run.py --table         # what is there; nothing is run, and nothing is written

Every run is kept as it ends (results/raw.jsonl), with the machine and the sources that made it, and is not
made again. Runs of other sources are not mixed in: `--new` begins again.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from autotune.answer.bottleneck import evidence_of, judge
from autotune.config_files.duration import duration_s
from autotune.inspection.host import host_facts
from autotune.launch.process import LocalRunner
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Fidelity, Segment
from autotune.space.launch_command import build_launch
from autotune.space.training_environment import user_environment

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "claims"))

import proofs  # noqa: E402 (needs the path set above)

PLANTED = HERE / "planted.py"
RAW = HERE / "results" / "raw.jsonl"
DECIDING = (
    "answer/bottleneck.py",
    *(
        f"trial/probe/{part}.py"
        for part in ("operation_counts", "loader_drain", "step_phases", "bottleneck_probe", "cached_batches")
    ),
)
"""What a verdict is made by."""
KINDS = ("input", "compute", "memory", "overhead", "sync")
STRENGTHS = (0.5, 0.7, 0.9)
BALANCED = {
    "thirds": {"input": 1 / 3, "compute": 1 / 3, "memory": 1 / 3},
    "quarters": {"input": 0.25, "compute": 0.25, "memory": 0.25, "overhead": 0.25},
    "halves": {"compute": 0.5, "overhead": 0.5},
}
FIDELITY = Fidelity(
    min_window_s=2.0,
    max_window_s=4.0,
    min_steps=10,
    target_width=0.05,
    setup_s=60.0,
    deadline_s=90.0,
    probe="why",
)


def cells():
    """(name, what was planted, shares) of every cell; what a kind leaves is shared by the others."""
    for kind in KINDS:
        for strength in STRENGTHS:
            rest = (1.0 - strength) / (len(KINDS) - 1)
            yield f"{kind} {strength}", kind, {k: strength if k == kind else rest for k in KINDS}
    for name, shares in BALANCED.items():
        yield f"balanced {name}", "balanced", shares


def one(runner, number, shares, threads):
    """The verdict on one fresh run, with what it rests on."""
    env = {**user_environment(os.environ, keep_loggers=False, trial=True), "OMP_NUM_THREADS": str(threads)}
    script = PLANTED
    each = json.loads(
        subprocess.run(
            [sys.executable, str(script), "--calibrate"], env=env, capture_output=True, text=True, check=True
        ).stdout
    )
    launch = build_launch(
        script=str(script),
        args=[
            *(word for kind, share in shares.items() for word in ("--share", f"{kind}={share:.4f}")),
            *(word for kind, seconds in each.items() for word in ("--each", f"{kind}={seconds:.9f}")),
        ],
        python=sys.executable,
        cwd=str(HERE),
        env=env,
        changes=[],
    )
    assignment = Assignment(
        uid=f"t{number:04d}-a1-{os.urandom(3).hex()}",
        study_id="bottlenecks",
        attempt=1,
        launch=launch,
        segments=(Segment(trial=number, config=Config(), fidelity=FIDELITY),),
    )
    ended = list(runner.run(assignment))[-1]
    if not isinstance(ended.outcome, Measurement):
        return {"failed": ended.outcome.message}
    seen = evidence_of(ended.outcome)
    verdict = judge(seen)
    return {
        "verdict": verdict.kind,
        "shares": {k: round(v, 4) for k, v in verdict.shares.items()},
        "evidence": asdict(seen),
        "foreign_cores": ended.outcome.contamination.foreign_cpu_frac,
        "seconds": round(ended.seconds, 1),
    }


def known():
    return [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.is_file() else []


def stamp():
    """By what and where a run was made, as far as a verdict depends on it."""
    host = host_facts()
    return {
        "sources": sources(),
        "date": datetime.date.today().isoformat(),
        "cpu": host.cpu_model,
        "cpus": host.cpus,
        "python": platform.python_version(),
    }


def sources():
    """Of the code that decides, and of what is planted."""
    own = (PLANTED, *(proofs.PACKAGE / part for part in DECIDING))
    return proofs.sources_sha256(*own)


def confusion(rows):
    """planted -> verdict -> count, by strength too, and how many are right."""
    good = [row for row in rows if "verdict" in row]
    matrix, by_cell = {}, {}
    for row in good:
        for table, key in ((matrix, row["planted"]), (by_cell, row["cell"])):
            table.setdefault(key, {})
            table[key][row["verdict"]] = table[key].get(row["verdict"], 0) + 1
    planted = [row for row in good if row["planted"] != "balanced"]
    wrong = [r for r in planted if r["verdict"] not in (r["planted"], "balanced", "unclear")]
    made = [row["made"] for row in rows if "made" in row]
    return {
        "made": [json.loads(one) for one in sorted({json.dumps(m, sort_keys=True) for m in made})],
        "runs": len(good),
        "failed": len(rows) - len(good),
        "right": sum(row["verdict"] == row["planted"] for row in good),
        "another_kind_named": len(wrong)
        + sum(r["planted"] == "balanced" and r["verdict"] not in ("balanced", "unclear") for r in good),
        "matrix": matrix,
        "cells": by_cell,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--new", action="store_true", help="begin again")
    parser.add_argument("--limit", default="", metavar="10m", help="begin no run after this much time")
    options = parser.parse_args()
    rows, begun_s = [] if options.new and not options.table else known(), time.monotonic()
    if any(row.get("made", {}).get("sources") != sources() for row in rows):
        if not options.table:
            raise SystemExit("what is kept is of other sources; --new begins again")
        print("these are figures of other sources than those that are here now")
    if options.new and not options.table:
        RAW.unlink(missing_ok=True)
    limit_s = duration_s(options.limit) if options.limit else float("inf")
    if not options.table:
        with tempfile.TemporaryDirectory() as folder:
            runner = LocalRunner(study_dir=Path(folder))
            for repeat in range(options.repeats):
                for name, planted, shares in cells():
                    is_known = any((r["cell"], r["repeat"]) == (name, repeat) for r in rows)
                    if is_known or time.monotonic() - begun_s > limit_s:
                        continue
                    row = {"cell": name, "repeat": repeat, "planted": planted, "made": stamp()}
                    row |= {"threads": options.threads}
                    row |= one(runner, len(rows), shares, options.threads)
                    rows.append(row)
                    with RAW.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{name:<20} {row.get('verdict', row.get('failed'))}", flush=True)
    found = confusion(rows)
    if not options.table:
        (HERE / "results" / "confusion.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["matrix"], indent=1))
    print(f"{found['right']} of {found['runs']} right, another kind named in {found['another_kind_named']}")


if __name__ == "__main__":
    main()
