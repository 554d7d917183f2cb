"""One long search from its start to `apply`, with everything that happened when.

    python whole.py vision_digits --budget 2h [--driver ray] [--pairs 5]

Searches with `--jsonl` and keeps every event; a search that was cut off is resumed, which the result
says: its later events are missing then. Then the stopwatch of `timer.py` measures `autotune apply
best.yaml` against the script as it is, with the script against itself beside. Everything goes to
`results/<workload>.whole.json`: events, seconds by stage, when the winner was first seen and confirmed,
the answer, and what the stopwatch found.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import timer
import yaml

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
DECIDED = (0, 1)


def search(name, budget, driver):
    """Run the search, or go on with the one that was cut off; where its things lie."""
    folder = HERE / "work" / f"{name}.whole"
    folder.mkdir(parents=True, exist_ok=True)
    note, best = folder / "search.json", folder / "best.yaml"
    if note.exists():
        return folder, json.loads(note.read_text())
    begun = list((folder / "home").glob("studies/*/journal.db"))
    words = ["resume"] if begun else ["search", "--budget", budget, "--driver", driver]
    words += [] if begun else ["--jsonl", "--out", str(best), "--script", str(WORKLOADS / f"{name}.py")]
    began = time.monotonic()
    with (folder / "events.jsonl").open("a") as events:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *words],
            cwd=folder,
            env={**os.environ, "AUTOTUNE_HOME": str(folder / "home")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if begun else events,
        )
    if done.returncode not in DECIDED:
        raise SystemExit(f"the search ended with exit code {done.returncode}")
    told = {
        "exit": done.returncode,
        "seconds": time.monotonic() - began,
        "resumed": bool(begun),
        "budget": budget,
        "driver": driver,
        "date": datetime.date.today().isoformat(),
    }
    note.write_text(json.dumps(told))
    return folder, told


def timeline(path):
    """What happened when, without names of folders."""
    kept = ("event", "elapsed_s", "trial", "attempt", "stage", "knobs", "seconds", "throughput", "speedup")
    kept += ("unit", "failure", "text", "stopped", "reason")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    events = [e for e in events if e.get("schema") == "autotune.event/v1"]
    return [{k: e[k] for k in kept if k in e} for e in events if e["event"] != "trial_started"]


def told_by(events, winner):
    """Seconds by stage, failures by kind, and when the winner was seen."""
    ended = [e for e in events if e["event"] == "trial_ended"]
    stages, failures = {}, {}
    for event in ended:
        stage = stages.setdefault(event["stage"], {"trials": 0, "seconds": 0.0})
        stage["trials"] += 1
        stage["seconds"] += event["seconds"]
        if "failure" in event:
            failures[event["failure"]] = failures.get(event["failure"], 0) + 1
    seen = [e["elapsed_s"] for e in ended if e["knobs"] == winner and "failure" not in e]
    confirmed = [
        e["elapsed_s"]
        for e in ended
        if e["knobs"] == winner and e["stage"] == "confirm" and "failure" not in e
    ]
    return {
        "stages": stages,
        "failures": failures,
        "winner_first_seen_s": seen[0] if seen else None,
        "winner_third_pair_s": confirmed[2] if len(confirmed) > 2 else None,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="WORKLOAD")
    parser.add_argument("--budget", default="2h")
    parser.add_argument("--driver", choices=["ray", "inline"], default="ray")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=20.0, help="seconds measured")
    options = parser.parse_args()
    folder, note = search(options.name, options.budget, options.driver)
    pick = yaml.safe_load((folder / "best.yaml").read_text())["picks"]["best"]
    events = timeline(folder / "events.jsonl")
    result = HERE / "results" / f"{options.name}.whole.json"
    state = {
        "search": note,
        "answer": {"speedup": pick["speedup"], "knobs": pick["knobs"]},
        "told": told_by(events, pick["knobs"]),
        "events": events,
    }
    if note["exit"] == 0:
        measured = timer.measure(
            folder / "best.yaml",
            WORKLOADS / f"{options.name}.py",
            [],
            pairs=options.pairs,
            result=folder / "apply.json",
            warm_s=options.warm,
            window_s=options.window,
        )
        state["applied"] = measured
        state["prediction"] = timer.prediction(pick["speedup"], measured["speedup"])
    timer.write(result, {**state, "machine": timer.machine()})
    print(json.dumps({"answer": state["answer"], "told": state["told"], "search": note}, indent=1))


if __name__ == "__main__":
    main()
