"""Run README's search command ten times, twice beside a busy neighbour, and count the exit codes."""

import argparse
import collections
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).resolve().parent / "results" / "first_screen.json"
BESIDE_A_NEIGHBOUR = {3, 7}


def search_command():
    """The words after `autotune` of README's first command, with the script's path made absolute."""
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"\.venv/bin/autotune (search .*)$", readme, re.MULTILINE)
    if not found:
        raise SystemExit("README.md holds no search command")
    words = shlex.split(found.group(1))
    return [str(ROOT / word) if word.startswith("experiments/") else word for word in words]


def budget_s(words):
    """Seconds of a budget such as 3m."""
    text = words[words.index("--budget") + 1]
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def one(words, *, neighbour):
    """One search in an empty folder with a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AUTOTUNE_HOME": str(Path(folder) / "home")}
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if neighbour else None
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "autotune", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        finally:
            if busy:
                busy.terminate()
                busy.wait()
        seconds = time.monotonic() - began
        best = Path(folder) / "best.yaml"
        picks = yaml.safe_load(best.read_text())["picks"] if best.exists() else {}
        pick = picks.get("best", {})
        return {
            "neighbour": neighbour,
            "exit": done.returncode,
            "seconds": round(seconds, 1),
            "over_budget_s": round(seconds - budget_s(words), 1),
            "speedup": pick.get("speedup"),
            "changed": {c["knob"]: c["value"] for c in pick.get("changes", [])},
            "last_lines": [] if done.returncode == 0 else done.stderr.splitlines()[-10:],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    options = parser.parse_args()
    words = search_command()
    shown = ["experiments/" + w.split("experiments/")[1] if "experiments/" in w else w for w in words]
    state = {"command": ["autotune", *shown], "runs": []}
    if RESULT.exists() and not options.fresh:
        earlier = json.loads(RESULT.read_text())
        state = earlier if earlier["command"] == state["command"] else state
    for number in range(len(state["runs"]), options.runs):
        state["runs"].append(one(words, neighbour=number in BESIDE_A_NEIGHBOUR))
        state["date"] = datetime.date.today().isoformat()
        state["cores"] = len(os.sched_getaffinity(0))
        state["exits"] = dict(collections.Counter(str(run["exit"]) for run in state["runs"]))
        part = RESULT.with_suffix(".part")
        part.parent.mkdir(exist_ok=True)
        part.write_text(json.dumps(state, indent=1) + "\n")
        part.replace(RESULT)
        print(json.dumps(state["runs"][-1]), flush=True)
    print(json.dumps(state["exits"]))
    return 0 if state["exits"] == {"0": options.runs} else 1


if __name__ == "__main__":
    raise SystemExit(main())
