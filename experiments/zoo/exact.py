"""Every change that is rated EXACT: is the training the same? Compares samples and parameters from outside.

    python experiments/zoo/exact.py                   # the whole zoo; goes on where it stopped
    python experiments/zoo/exact.py --scripts gan.py --again
    python experiments/zoo/exact.py --folder PATH     # scripts elsewhere, each with its name alone
    python experiments/zoo/exact.py --limit 20m       # begins no further script after that
    python experiments/zoo/exact.py --list            # what is not the same, and what was not run

Results are lines of ``exact.jsonl`` beside this file, one per script and knob; the last one counts. A line
without a knob says that a script was run. Knobs of one script are compared in one run, and alone where that
run is another training.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import zoo  # noqa: E402 (needs the path set above)
import zoo_exact  # noqa: E402 (needs the path set above)
import zoo_fork  # noqa: E402 (needs the path set above)

TIMED_OUT = "exit 124"
UNITS = {"s": 1, "m": 60, "h": 3600}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", default="", help="names, with commas; all")
    parser.add_argument("--folder", type=Path, help="of scripts outside the zoo")
    parser.add_argument("--limit", default="", metavar="TIME", help="20m, 2h")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    scripts = elsewhere(args.folder) if args.folder else zoo.load()
    known = zoo_exact.read()
    names = args.scripts.split(",") if args.scripts else list(scripts)
    if not args.list:
        run([scripts[name] for name in names if args.again or (name, "") not in known], args.limit)
        known = zoo_exact.read()
    missing = [name for name, script in scripts.items() if (name, "") not in known and not script.ending]
    print(zoo_exact.summary(known))
    for (name, knob), row in known.items():
        if knob and row["verdict"] in (zoo_exact.OTHER, zoo_exact.WITHDRAWN):
            print(row["verdict"], name, knob, {k: v for k, v in row.items() if k not in ("script", "knob")})
    if missing:
        print("not run:", *missing)


def elsewhere(folder):
    zoo.SCRIPTS = folder.resolve()
    names = sorted(path.name for path in folder.glob("*.py"))
    return {name: zoo.Script(name=name, steps=None, samples=None) for name in names}


def run(scripts, limit):
    ends = time.monotonic() + (float(limit[:-1]) * UNITS[limit[-1]] if limit else float("inf"))
    zoo_fork.preload()
    for script in scripts:
        if script.missing or script.ending or time.monotonic() > ends:
            continue
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            world = zoo.World(script, Path(folder), start=zoo_fork.run)
            world.look()
            lines = list(judged(world)) if world.bare and world.facts and not world.refused_whole else []
            write([*lines, {"script": script.name, "knob": ""}])
            verdicts = " ".join(f"{line['knob']}={line['verdict']}" for line in lines)
            print(f"{script.name}: {time.monotonic() - begun:.0f} s {verdicts}", flush=True)


def judged(world):
    """A line for every EXACT change of one script."""
    offered = world.exact(zoo.KNOBS)
    for group in (*zoo.TOGETHER, *((k,) for k in offered if not any(k in g for g in zoo.TOGETHER))):
        members = {knob: offered[knob] for knob in group if knob in offered}
        found = verdict(world, members) if members else None
        is_whole = found is not None and found["verdict"] == zoo_exact.SAME
        for knob, values in members.items():
            alone = found if is_whole or len(members) == 1 else verdict(world, {knob: values})
            if alone is not None:
                yield {"script": world.script.name, "knob": knob, **alone}


def verdict(world, members, dead=frozenset()):
    trained = world.trained(members, dead)
    if isinstance(trained, str):
        # A run that had no time to end says nothing of the knob.
        return None if TIMED_OUT in trained else {"verdict": zoo_exact.WITHDRAWN, "reason": trained}
    seen, redrawn = trained
    brought = {name for values in members.values() for name in values}
    found = zoo_exact.compared(seen, world.bare, {*members, *brought}, redrawn=redrawn)
    if found["verdict"] == zoo_exact.OTHER and len(members) == 1:
        # A search measures each change before `apply` makes it, and drops a delivery that has a side effect.
        gone = world.contradicted(members, dead)
        if gone is not None and gone not in dead:
            return verdict(world, members, dead | {gone})
    return found


def write(lines):
    with zoo_exact.RESULTS.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
