"""A whole search on each workload, and its claim measured again from outside.

    python search.py --budget 5m           # four workloads: about 30 minutes
    python search.py --workloads small_steps --budget 4m --pairs 3
    python search.py --device cpu --tiny

Besides PyTorch a search needs: pip install optuna mlflow typer rich pydantic PyYAML durationpy psutil, and
nvidia-ml-py to see the device from outside (Ray is not needed: --driver inline). What was found stays in
`work/`; a second call measures on instead of searching again.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

from common import FULL, HERE, SMALL, WORKLOADS, earlier, interval, parsed, parser, stopwatch, write

NEEDED = ("optuna", "mlflow", "typer", "rich", "pydantic", "yaml", "durationpy", "psutil")
ARMS = ("A", "B", "A2")
ANSWERS = (0, 1, 8)
"""Exit codes of a search that ended with an answer."""


def missing():
    """Packages that a search needs and that are not here."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def work(options, name):
    """Where a search leaves what it found."""
    folder = HERE / "work" / options.out.name / (f"{name}-tiny" if options.tiny else name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def plain(options, name):
    """The command of the unchanged script."""
    args = (SMALL if options.tiny else FULL)[name]
    return [sys.executable, str(WORKLOADS / f"{name}.py"), *args]


def searched(options, name):
    """How the search ended; an earlier one's where there is one."""
    folder = work(options, name)
    note, best = folder / "search.json", folder / "best.yaml"
    if note.exists():
        return json.loads(note.read_text()), best
    command = plain(options, name)
    words = [sys.executable, "-m", "autotune", "search", "--budget", options.budget, "--driver", "inline"]
    words += ["--out", str(best), "--script", command[1], "--", *command[2:]]
    began = time.monotonic()
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "AUTOTUNE_HOME": str(folder / "home"), "AUTOTUNE_TRANSFER": "off"},
        capture_output=True,
        text=True,
    )
    reported = {
        "exit": done.returncode,
        "seconds": time.monotonic() - began,
        "budget": options.budget,
        "screen": done.stdout.splitlines()[-25:],
        "progress": done.stderr.splitlines()[-60:],
    }
    if done.returncode in ANSWERS:
        note.write_text(json.dumps(reported))
    return reported, best


def claimed(best):
    """The pick `best` of a best.yaml: its claim and what it changes."""
    import yaml

    pick = yaml.safe_load(best.read_text())["picks"]["best"]
    return {"speedup": pick["speedup"], "knobs": pick["knobs"]}


def again(options, name, best):
    """The script, the answer and the script once more, in fresh processes in rotating order."""
    command = plain(options, name)
    tuned = [sys.executable, "-m", "autotune", "apply", str(best), "--", *command]
    warm_s, window_s = (0.2, 0.6) if options.tiny else (6.0, 8.0)
    cycles = []
    for cycle in range(1 if options.tiny else options.pairs):
        rates = {}
        for n in range(len(ARMS)):
            arm = ARMS[(n + cycle) % len(ARMS)]
            rates[arm] = stopwatch(tuned if arm == "B" else command, warm_s=warm_s, window_s=window_s)
        cycles.append(rates)
        print(name, rates, flush=True)
    return {
        "cycles": cycles,
        "speedup": interval([c["B"] / c["A"] for c in cycles]),
        "identical": interval([c["A2"] / c["A"] for c in cycles]),
    }


def main(words=None):
    options = parsed(parser(__doc__, budget="5m", pairs=3), words)
    options.budget = "90s" if options.tiny else options.budget
    lacking = missing()
    if lacking:
        return write("search", {"missing": lacking}, options, note=f"pip install {' '.join(lacking)}")
    result, fine, before = {}, [], earlier("search", options)
    for name in options.workloads or (["small_steps"] if options.tiny else list(FULL)):
        if "again" in before.get(name, {}) and not options.tiny:
            result[name] = before[name]
            continue
        reported, best = searched(options, name)
        result[name] = {"search": reported}
        fine.append(reported["exit"] in ANSWERS)
        if reported["exit"] == 0:
            result[name] |= {"claim": claimed(best), "again": again(options, name, best)}
        print(name, "exit", reported["exit"], result[name].get("claim"), flush=True)
        write("search", result, options, ok=all(fine))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
