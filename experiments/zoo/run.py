"""Every script of the zoo with every knob: what is applied, what is refused, what goes wrong.

    python experiments/zoo/run.py                     # the full matrix; goes on where it stopped
    python experiments/zoo/run.py --knobs accumulation,precision --scripts sum_loss.py,gan.py
    python experiments/zoo/run.py --again --scripts gan.py        # once more, after a change
    python experiments/zoo/run.py --limit 20m         # begins no further script after that
    python experiments/zoo/run.py --table             # writes the pages from the results; runs nothing
    python experiments/zoo/run.py --gaps              # what is not as expected; runs nothing

Results are lines of ``results.jsonl`` beside this file, one per script and knob, the last one counts.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import reports

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import zoo  # noqa: E402 (needs the path set above)
import zoo_fork  # noqa: E402 (needs the path set above)
import zoo_table  # noqa: E402 (needs the path set above)

from autotune.model.facts import COUNTED  # noqa: E402 (needs the path set above)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", default="", help="names, with commas; all")
    parser.add_argument("--knobs", default="", help="names, with commas; all")
    parser.add_argument("--without", default="", help="knobs to leave out, with commas")
    parser.add_argument("--limit", default="", metavar="TIME", help="20m, 2h")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--together", action="store_true", help="knobs that go together in one run")
    parser.add_argument("--forks", action="store_true", help="as forks of one process with torch loaded")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--gaps", action="store_true")
    args = parser.parse_args()
    scripts = zoo.load()
    if not args.table and not args.gaps:
        run(scripts, args)
    results = zoo_table.read_results()
    if args.gaps:
        for line in sorted(results.values(), key=lambda r: (r["verdict"], r["knob"], r["script"])):
            if line["verdict"] != "ok":
                words = line["problems"] or [line["reason"]]
                where = f"{line['verdict']:9} {line['knob']:18} {line['script']:24}"
                print(where, line["by"], "; ".join(words))
    (ROOT / "docs" / "zoo.md").write_text(zoo_table.page(scripts, results), encoding="utf-8")
    reports.write(results)


def run(scripts, args):
    results = {} if args.again else zoo_table.read_results()
    names = args.scripts.split(",") if args.scripts else list(scripts)
    knobs = args.knobs.split(",") if args.knobs else list(zoo.KNOBS)
    left_out = set(args.without.split(",")) if args.without else set()
    start = None
    if args.forks:
        zoo_fork.preload()
        start = zoo_fork.run
    ends = time.monotonic() + seconds(args.limit) if args.limit else float("inf")
    for name in names:
        script = scripts[name]
        wanted = [
            k
            for k in (*knobs, *(["ending"] if script.ending else []))
            if k in (*script.knobs, "ending") and k not in left_out and (name, k) not in results
        ]
        if not wanted or script.missing or time.monotonic() > ends:
            continue
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            one(script, wanted, Path(folder), together=args.together, start=start)
            print(f"{name}: {len(wanted)} cells in {time.monotonic() - begun:.0f} s", flush=True)


def one(script, knobs, folder, *, together, start):
    world = zoo.World(script, folder, start=start)
    world.look()
    for cell in looked_at(script, world):
        write(cell)
    knobs = [k for k in knobs if k != "ending"]
    for cell in world.cells(knobs) if together else map(world.cell, knobs):
        write(cell)


def looked_at(script, world):
    """Counts by hand, and a run with nothing changed."""
    if script.ending:
        outcome = world.ending()
        label = {"script_error": "crash_exit"}.get(script.ending, script.ending)
        found = outcome.kind.label if zoo.is_failure(outcome) else "a measurement"
        yield entry(script, "ending", label, [] if found == label else [f"{found} instead of {label}"])
        return
    if not world.bare:
        return
    steps, samples = world.reported["steps"], world.reported["samples"]
    counted = world.facts.run.samples_source in COUNTED and script.samples is not None
    problems = []
    if script.steps is not None and steps != script.steps:
        problems.append(f"{steps} steps instead of {script.steps}")
    if counted and samples != script.samples:
        problems.append(f"{samples} samples instead of {script.samples}")
    yield entry(script, "steps", f"{script.steps} steps, {script.samples} samples", problems)
    seen, bare = world.baseline_seen, world.bare
    unlike = [what for what in ("steps", "losses", "last") if seen.get(what) != bare.get(what)]
    yield entry(script, "nothing", "as a bare run", [f"other {', '.join(unlike)}"] if unlike else [])


def entry(script, knob, expected, problems):
    verdict = "wrong" if problems else "ok"
    outcome = "wrong" if problems else "ok"
    return zoo.Cell(script.name, knob, expected, outcome, problems=problems, verdict=verdict)


def write(cell):
    with zoo_table.RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(cell.as_dict()) + "\n")


def seconds(text):
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


if __name__ == "__main__":
    main()
