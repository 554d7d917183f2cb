"""Time a search's start and end: seconds from Enter to each stage, and from the last trial to the answer."""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).resolve().parent / "results" / "startup.jsonl"
SCRIPT = ROOT / "experiments" / "workloads" / "tabular_mlp.py"
POLL_S = 0.02


def children(pid):
    """Pids below a process, by /proc."""
    found, waiting = [], [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                pids = [int(word) for word in task.read_text().split()]
            except OSError:
                continue
            found += pids
            waiting += pids
    return found


def words(pid):
    """Its command line, empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def watch(process, began_s, seen):
    """Note when the raylet appears and when all of Ray's first agents have named themselves."""
    while process.poll() is None and "ray_agents" not in seen:
        titles = [words(pid) for pid in children(process.pid)]
        if any("raylet/raylet" in title[0] for title in titles if title):
            seen.setdefault("raylet", time.monotonic() - began_s)
        if sum(title[0].startswith("ray::") for title in titles if title) >= 2:
            seen.setdefault("ray_agents", time.monotonic() - began_s)
        time.sleep(POLL_S)


def first_step_s(home, began_ns):
    """Seconds from Enter to the end of the first trial's first step; None where there was none."""
    for events in sorted(Path(home).glob("studies/*/trials/t0000-*/events.jsonl")):
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if event["e"] == "Closed":
                return (event["d"]["first_step_ns"] - began_ns) / 1e9
    return None


def first_measurement(home):
    """The parts of the first trial's start, as journaled."""
    sys.path.insert(0, str(ROOT))
    from autotune.store.fold import fold
    from autotune.store.journal import Journal

    for path in Path(home).glob("studies/*/journal.db"):
        with Journal.read(path) as journal:
            measured = fold(journal.entries()).trials[0].measurement
        if measured is not None:
            names = ("startup_s", "import_s", "setup_s", "warmup_s", "window_s")
            return {name: round(getattr(measured, name), 3) for name in names}
    return {}


def one(driver, budget):
    """One search in a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        environment = {**os.environ, "AUTOTUNE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "autotune", "search", "--jsonl", "--driver", driver]
        command += ["--budget", budget, "--out", f"{folder}/best.yaml", "--", str(SCRIPT)]
        began_s, began_ns = time.monotonic(), time.perf_counter_ns()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        seen = {}
        watcher = threading.Thread(target=watch, args=(process, began_s, seen), daemon=True)
        watcher.start()
        last_trial_s = None
        for line in process.stdout:
            now_s = time.monotonic() - began_s
            event = json.loads(line)
            name = event.get("event", "")
            if name == "study_began":
                seen["inspected"] = now_s
            elif name == "trial_started":
                seen.setdefault("first_trial_process", now_s)
                seen.setdefault("second_trial_process", now_s) if event["trial"] else None
            elif name == "trial_ended":
                last_trial_s = now_s
                seen.setdefault("first_trial_ended", now_s)
            elif event.get("schema", "").startswith("autotune.result/"):
                seen["answer_after_last_trial"] = now_s - (last_trial_s or now_s)
        code = process.wait()
        watcher.join()
        seen["exit"] = time.monotonic() - began_s
        seen["first_step"] = first_step_s(home, began_ns)
        measured = first_measurement(home)
    seconds = {name: None if s is None else round(s, 3) for name, s in seen.items()}
    return {
        "driver": driver,
        "budget": budget,
        "exit_code": code,
        "seconds": seconds,
        "first_trial": measured,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--out", type=Path, default=RESULT)
    requested = parser.parse_args()
    requested.out.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in requested.out.read_text().splitlines()]
        if requested.out.exists()
        else []
    )
    # In turn, so that a page cache that warms up and a machine that slows down meet both drivers.
    for repeat in range(requested.repeats):
        for driver in ("ray", "inline"):
            if any((row["driver"], row["repeat"]) == (driver, repeat) for row in done):
                continue
            row = {
                "repeat": repeat,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "cpus": os.cpu_count(),
                "load": round(os.getloadavg()[0], 2),
                "python": platform.python_version(),
                **one(driver, requested.budget),
            }
            with requested.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row, indent=1), flush=True)


if __name__ == "__main__":
    main()
