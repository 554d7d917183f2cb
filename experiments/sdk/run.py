"""A short search on each of the three scripts, its answer applied, and what came of it as JSON.

    python experiments/sdk/run.py --python PATH               # of an environment with the three libraries
    python experiments/sdk/run.py --python PATH --only jax --budget 5m

Results are ``results/NAME.json`` beside this file, without paths and without the name of the machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "keras": ("train_keras.py", ("--epochs", "1")),
    "jax": ("train_jax.py", ("--steps", "50")),
    "onnx": ("infer_onnx.py", ("--batches", "50")),
}
"""Name -> script, and the words that let it end soon."""
KEPT = ("exit", "sentence", "caveats", "baseline", "picks", "failures", "refusals", "tried")
"""Fields of what `autotune search --json` prints."""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts")
    parser.add_argument("--only", default=",".join(SCRIPTS), help="names, with commas")
    parser.add_argument("--budget", default="3m")
    args = parser.parse_args()
    for name in args.only.split(","):
        found = one(name, args.python, args.budget)
        path = HERE / "results" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {found.get('sentence') or found.get('error')}", flush=True)


def one(name, python, budget):
    """Search on one script in a home of its own, then apply what was found to a short run."""
    script, short = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        best = str(Path(folder) / "best.yaml")
        words = ["--space", f"./{name}.yaml", "--driver", "inline", "--budget", budget, "--out", best]
        words.append("--json")
        if name != "onnx":
            words += ["--allow", "batch"]
        began = time.monotonic()
        ended = autotune("search", *words, "--", python, script, home=folder)
        seconds = time.monotonic() - began
        reported = json.loads(ended.stdout)
        found = {
            "script": script,
            "budget": budget,
            "seconds": round(seconds, 1),
            "machine": machine(),
            "versions": versions(python),
            **{field: reported[field] for field in KEPT if field in reported},
        }
        if "error" in reported:
            return {**found, "error": reported["error"]["message"].splitlines()[0]}
        applied = {}
        for pick in found.get("picks", {}):
            run = autotune("apply", best, "--pick", pick, "--", python, script, *short, home=folder)
            applied[pick] = {"exit": run.returncode, "last": (run.stdout.splitlines() or [""])[-1]}
        return without_places({**found, "applied": applied})


def autotune(verb, *words, home):
    return subprocess.run(
        [sys.executable, "-m", "autotune", verb, *words],
        cwd=HERE,
        env={**os.environ, "AUTOTUNE_HOME": str(Path(home) / "home"), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
    )


def versions(python):
    """Of the interpreter and of what the scripts import."""
    names = ("tensorflow", "tensorflow_cpu", "keras", "jax", "onnxruntime", "onnx", "numpy")
    look = (
        "import json, sys; from importlib import metadata as m\n"
        "found = {'python': sys.version.split()[0]}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", look, *names], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def machine():
    """Kind of CPU and how many."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} CPUs, {model or platform.machine()}"


def without_places(found):
    """The same without anything that names a folder or this machine."""
    text = json.dumps(found)
    for place in (str(HERE), str(HERE.parents[1]), tempfile.gettempdir(), str(Path.home())):
        text = text.replace(place, "")
    return json.loads(text.replace(platform.node(), "") if platform.node() else text)


if __name__ == "__main__":
    main()
