"""Search ten minutes on both workloads, measure the answer again from outside, compare with the claim.

    python run.py [photos_denoise] [vision_digits] [--budget 10m] [--pairs 10] [--driver ray|inline]

What was found stays in `work/` (not kept in the repository), so that a second call measures on instead of
searching again; the figures go to `results/<workload>.json`.
"""

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

import searching
import timer
import yaml

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
NAMES = ("photos_denoise", "vision_digits")


def search(name, budget, driver):
    """best.yaml of a search, its exit code and wall time; an earlier search's where there is one."""
    folder = HERE / "work" / name
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "search.json"
    best = folder / "best.yaml"
    if not (note.exists() and best.exists()):
        began = time.monotonic()
        words = ["search", "--budget", budget, "--driver", driver, "--python", sys.executable]
        words += ["--out", str(best), "--script", str(WORKLOADS / f"{name}.py")]
        best.unlink(missing_ok=True)
        code = searching.run_autotune(words, cwd=folder)
        searching.check_answer(code, best)
        note.write_text(
            json.dumps(
                {
                    "exit": code,
                    "seconds": time.monotonic() - began,
                    "budget": budget,
                    "driver": driver,
                    "date": datetime.date.today().isoformat(),
                }
            )
        )
    return best, json.loads(note.read_text())


def verdict(name, options):
    """Search, measure again, compare; one sentence."""
    best, note = search(name, options.budget, options.driver)
    document = yaml.safe_load(best.read_text())
    pick = document["picks"]["best"]
    if note["exit"] in (1, 8):
        return f"{name}: the search claims no gain; nothing to compare"
    result = HERE / "results" / f"{name}.json"
    state = timer.measure(
        best,
        WORKLOADS / f"{name}.py",
        [],
        pairs=options.pairs,
        result=result,
        warm_s=options.warm,
        window_s=options.window,
    )
    claim = pick["speedup"]
    state["search"] = note
    state["claim"] = {
        "speedup": claim,
        "knobs": pick["knobs"],
        "changed": [c["knob"] for c in pick["changes"]],
    }
    state["prediction"] = timer.prediction(claim, state["speedup"])
    timer.write(result, state)
    again, same, expected = state["speedup"], state["identical"], state["prediction"]
    holds = "within" if expected["within"] else "OUTSIDE"
    quiet = "contains" if same["low"] <= 1 <= same["high"] else "EXCLUDES"
    return (
        f"{name}: claimed {shown(claim)} from {claim['n']} pairs; re-measured {shown(again)} from "
        f"{again['n']} pairs, {holds} the predicted [{expected['low']:.3f}, {expected['high']:.3f}]; "
        f"A/A {shown(same)} {quiet} 1.00; with the script's evaluations in it "
        f"{shown(state['speedup_with_evaluation'])}"
    )


def shown(ratio):
    """A ratio with its interval."""
    return f"{ratio['value']:.3f}x [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=", ".join(NAMES))
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=20.0, help="seconds measured")
    parser.add_argument("--driver", choices=["ray", "inline"], default="ray")
    options = parser.parse_args()
    searching.check_tree()
    searching.end_on_signals()
    for name in options.names or NAMES:
        print(verdict(name, options), flush=True)


if __name__ == "__main__":
    main()
