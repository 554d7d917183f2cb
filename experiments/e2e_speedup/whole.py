"""One long search from its start to `apply`, with everything that happened when.

    python whole.py vision_digits --budget 2h [--driver ray] [--pairs 5]

A search that was cut off is resumed. What happened when is read from the search's own journal, so that
nothing is missing then. After it the stopwatch of `timer.py` measures `autotune apply best.yaml` against the
unchanged script, with the script against itself beside. Everything goes to `results/<workload>.whole.json`:
every trial, seconds by stage, when the winner was first seen and when its third pair was in, the answer, and
what the stopwatch found.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

import searching
import timer
import yaml

from autotune.cli.open_study import open_search
from autotune.model.trial import Stage

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(HERE.parent / "grids"))
from grid import scrubbed  # noqa: E402 (needs the path set above)


def has_study(folder):
    """A search has begun here."""
    return any((folder / "home").glob("studies/*/journal.db"))


def search(name, budget, driver, folder):
    """Run the search, or go on with the one that was cut off; how it ended."""
    note, best = folder / "search.json", folder / "best.yaml"
    if note.exists():
        return json.loads(note.read_text())
    begun = has_study(folder)
    words = ["resume"]
    if not begun:
        words = ["search", "--budget", budget, "--driver", driver, "--python", sys.executable]
        words += ["--out", str(best), "--script", str(WORKLOADS / f"{name}.py")]
    best.unlink(missing_ok=True)
    code = searching.run_autotune(words, cwd=folder, stdout=sys.stderr)
    searching.check_answer(code, best)
    if not has_study(folder):
        raise SystemExit(f"the search ended with exit code {code} and left no journal: it did not begin")
    commit, dirty = searching.commit()
    reported = {
        "exit": code,
        "resumed": begun,
        "budget": budget,
        "driver": driver,
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "dirty": dirty,
    }
    note.write_text(json.dumps(reported))
    return reported


def timeline(study):
    """A line per trial, in the order in which they ended; seconds since the search began."""
    lines = []
    for trial in sorted(study.finished(*Stage), key=lambda t: t.finished_s):
        line = {
            "elapsed_s": round(trial.finished_s, 1),
            "seconds": round(trial.seconds, 1),
            "trial": trial.number,
            "stage": trial.stage.value,
            "knobs": dict(trial.config),
            "reason": trial.reason,
        }
        if trial.failure is not None:
            line["failure"] = trial.failure.kind.label
        if trial.measurement is not None:
            rate = trial.measurement.throughput
            line |= {"throughput": rate.value, "unit": rate.unit}
        lines.append(line)
    return scrubbed(lines)


def winner_events(events, winner):
    """Seconds by stage, failures by kind, and when the winner (by what it changes) was seen."""
    stages, failures = {}, {}
    for event in events:
        stage = stages.setdefault(event["stage"], {"trials": 0, "seconds": 0.0})
        stage["trials"] += 1
        stage["seconds"] = round(stage["seconds"] + event["seconds"], 1)
        if "failure" in event:
            failures[event["failure"]] = failures.get(event["failure"], 0) + 1
    seen = [e for e in events if winner and e["knobs"] == winner and "failure" not in e]
    pairs = [e for e in seen if e["stage"] == Stage.CONFIRM.value]
    return {
        "stages": stages,
        "failures": failures,
        "winner": winner,
        "winner_first_seen_s": seen[0]["elapsed_s"] if seen else None,
        "winner_third_pair_s": pairs[2]["elapsed_s"] if len(pairs) > 2 else None,
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
    searching.check_tree()
    searching.end_on_signals()
    folder = HERE / "work" / f"{options.name}.whole"
    folder.mkdir(parents=True, exist_ok=True)
    # `apply` finds the compiled code of the search there, as it does for people.
    os.environ["AUTOTUNE_HOME"] = str(folder / "home")
    note = search(options.name, options.budget, options.driver, folder)
    opened = open_search(None)
    study, winner = opened.study, dict(opened.answer.best.config) if opened.answer else {}
    pick = yaml.safe_load((folder / "best.yaml").read_text())["picks"]["best"]
    events = timeline(study)
    state = {
        "search": {**note, "seconds": round(study.elapsed_s, 1), "stopped": study.stopped},
        "answer": {"speedup": pick["speedup"], "knobs": pick["knobs"], "changed": winner},
        "told": winner_events(events, winner),
        "events": events,
    }
    result = HERE / "results" / f"{options.name}.whole.json"
    timer.write(result, {**state, "machine": timer.machine()})
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
    print(json.dumps({"answer": state["answer"], "told": state["told"], "search": state["search"]}, indent=1))


if __name__ == "__main__":
    main()
