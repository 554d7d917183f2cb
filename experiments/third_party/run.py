"""Training entry points that nobody of the project wrote, as they come in PyPI packages.

    python experiments/third_party/run.py --before              # all candidates; goes on where it stopped
    python experiments/third_party/run.py --before --only ctgan,vamb --without compile_mode
    python experiments/third_party/run.py --after --limit 30m   # after mends; begins none after that
    python experiments/third_party/run.py --after --again --only ctgan --knobs threads
    python experiments/third_party/run.py --table               # README's tables; runs nothing

Environments, data and trials lie in a folder of their own (`--work`); results are lines of
``results/before.jsonl`` and ``results/after.jsonl``, of which the last one of its kind counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import third_party_envs as envs  # noqa: E402 (needs the path set above)
import third_party_judge as judge  # noqa: E402 (needs the path set above)

STEPS = ("install", "data", "inspect", "baseline")
NEEDED = ("install", "data", "baseline")
"""Without one of these nothing that follows can be had; `--again` tries anew."""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--before", dest="when", action="store_const", const="before", help="the first run")
    when.add_argument("--after", dest="when", action="store_const", const="after", help="after mends")
    when.add_argument("--table", action="store_true")
    parser.add_argument("--only", default="", help="names, with commas; all")
    parser.add_argument("--knobs", default="", help="names, with commas, or none; all")
    parser.add_argument("--without", default="", help="knobs to leave out, with commas")
    parser.add_argument("--install-only", action="store_true", help="make environments, nothing else")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--limit", default="", metavar="TIME", help="20m, 2h")
    parser.add_argument("--work", default=str(work_folder()), metavar="FOLDER")
    args = parser.parse_args()
    candidates = envs.load()
    if not args.table:
        run(candidates, args)
    write_tables(candidates)


def work_folder():
    """Outside the project and outside /tmp, as a user's own environments and data are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune-third-party"


def run(candidates, args):
    names = args.only.split(",") if args.only else [candidate.name for candidate in candidates]
    unknown = set(names) - {candidate.name for candidate in candidates}
    if unknown:
        raise SystemExit(f"no candidate is called {', '.join(sorted(unknown))}")
    left_out = set(args.without.split(","))
    wanted = args.knobs.split(",") if args.knobs else judge.KNOBS
    knobs = [knob for knob in wanted if knob in judge.KNOBS and knob not in left_out]
    ends = time.monotonic() + seconds(args.limit) if args.limit else float("inf")
    rooms = envs.Rooms(args.work)
    for candidate in candidates:
        if candidate.name not in names or time.monotonic() > ends:
            continue
        began = time.monotonic()
        if args.install_only:
            message = envs.install(candidate, rooms)
            print(f"{candidate.name}: {message['reason'] or 'installed'}", flush=True)
            continue
        Session(candidate, rooms, args.when, again=args.again).all(knobs)
        print(f"{candidate.name}: {time.monotonic() - began:.0f} s", flush=True)


class Session:
    """Everything that is missing of one candidate, in order; stops at what makes the rest impossible."""

    def __init__(self, candidate, rooms, when, *, again):
        self.candidate, self.rooms, self.when = candidate, rooms, when
        self.done = {} if again else judge.read_results(when)

    def has(self, what, knob=""):
        return (self.candidate.name, what, knob) in self.done

    def all(self, knobs):
        if any(self.has(step) and not self.done[self.candidate.name, step, ""]["ok"] for step in NEEDED):
            return
        missing = [knob for knob in knobs if not self.has("knob", knob)]
        steps = [step for step in STEPS if not self.has(step)]
        if not steps and not missing:
            return
        # Even where they are known: the environment may be gone, and a run needs fresh data.
        message = envs.install(self.candidate, self.rooms)
        if not self.say("install", message, write="install" in steps):
            return
        why = envs.lay_out(self.candidate, self.rooms)
        if not self.say("data", {"ok": not why, "reason": why}, write="data" in steps):
            return
        # Late, so that tables need none of it.
        from third_party_runs import Runs

        runs = Runs(self.candidate, self.rooms)
        if "inspect" in steps:
            self.say("inspect", runs.inspect())
        # Its facts decide about the knobs.
        known = "baseline" not in steps and runs.remember()
        if not known and not self.say("baseline", runs.baseline()):
            # Whose fault is it? What does not train without us either is not ours to mend.
            self.say("bare", runs.bare())
            return
        for knob in missing:
            self.say("knob", runs.knob(knob))

    def say(self, what, found, *, write=True):
        """Append one line to the results; whether it went well."""
        places = (self.rooms.work / self.candidate.name, self.rooms.work)
        line = {"name": self.candidate.name, "what": what, **judge.scrubbed_data(found, places)}
        if write:
            path = judge.results_path(self.when)
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        named = f"{what} {line['knob']}" if "knob" in line else what
        reported = line.get("outcome", "ok" if line["ok"] else "failed")
        print(f"  {self.candidate.name} {named}: {reported} {line.get('reason', '')}".rstrip(), flush=True)
        return line["ok"]


def write_tables(candidates):
    titles = (("before", "First runs, before any mend"), ("after", "After mends"))
    found = [(title, judge.read_results(when)) for when, title in titles]
    readme = HERE / "README.md"
    page = readme.read_text(encoding="utf-8")
    tables = [(title, judge.table(candidates, results) if results else "") for title, results in found]
    readme.write_text(judge.with_tables(page, tables), encoding="utf-8")


def seconds(text):
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error}\n{error.stderr or ''}") from error
