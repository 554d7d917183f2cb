"""Searches on recorded tables, on a virtual clock: how soon do they recommend what the table has as best?

    python run.py all --limit 30m                 # the four below, seed by seed; again until all is there
    python run.py develop                         # everybody on the recorded tables that may be looked at
    python run.py ablations                       # the planner without its parts, on the same tables
    python run.py adverse                         # the strongest on variants of them that mislead
    python run.py parallel                        # four and eight processes at once, on the same tables
    python run.py transfer                        # the planner after earlier searches, on the same tables
    python run.py synthetic                       # made-up tables, in synthetic.py
    python run.py hold NAME=FILE ...              # list tables as held out: hashed, not opened
    python run.py freeze                          # write down code, rivals and tables, before the run
    python run.py held-out                        # once per frozen version
    python run.py open                            # after that run: its tables may be looked at
    python run.py synthetic --samplers "staged,staged without free_draws+focuses,staged without all"

One line of JSON per search goes to `results/<set>.jsonl`, of held-out tables to
`results/held-out-<code>.jsonl`; a line that is there is not run again. What they show is written beside, as
Markdown and as a drawing. README.md has the method and the bar.
"""

import argparse
import concurrent.futures
import datetime
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import analyse
import score
import synthetic
import worlds
from rivals import RIVALS

from autotune.compare.transfer import beliefs
from autotune.errors import AutotuneError, UsageError, did_you_mean
from autotune.model.config import Config
from autotune.model.trial import StartPolicy
from autotune.search.feature_flags import DEFAULT, NAMES
from autotune.search.history_export import lessons
from autotune.search.samplers.registry import PLANNER, SAMPLERS, strategy_for
from autotune.testing.replay import replay
from autotune.testing.replay_runner import ReplayRunner
from autotune.testing.table import decode

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GRIDS = HERE.parent / "grids"
RESULTS = HERE / "results"
SPLIT = HERE / "split.json"
FROZEN = HERE / "frozen.json"
HELD_RUNS = HERE / "held_out_runs.jsonl"
SEEDS = 30
BUDGET_S = 900.0
WORLDS = 2
LIBRARIES = ("optuna", "numpy", "scipy", "torch")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

OTHERS = ("transfer", "synthetic", "held-out", "hold", "freeze", "open")
ALL = ("develop", "ablations", "adverse", "parallel")
"""Sets on recorded tables that may be opened."""

EVERYBODY = (*SAMPLERS, *RIVALS)
ABLATIONS = (
    PLANNER,
    *(f"{PLANNER} {'without' if getattr(DEFAULT, name) else 'with'} {name}" for name in NAMES),
    f"{PLANNER} without all",
)
ADVERSE = (
    PLANNER, "random", "tpe", "coordinate", "tpe-bare", "tpe-masked", "asha", "coordinate-prior", "expert",
)  # fmt: skip
PARALLEL, WORKERS = (PLANNER, "tpe"), (4, 8)
AFTER = {
    "itself": "one of the same table, with other draws",
    "a change": "the same, and the script has changed since",
    "others": "one of each other table",
    "a lie": "one of the same table with its gains turned round, under the same fingerprint",
    "a changed lie": "the same, and the script has changed since",
    "lies": "one of each other table with its gains turned round",
}
"""Which searches came earlier -> what they were; ``staged after itself``."""
TRANSFER = (PLANNER, *(f"{PLANNER} after {name}" for name in AFTER))
EARLIER_SEEDS = 1000
"""Between the seed of a search and that of the earlier ones: no draw is shared."""
FORKED = analyse.FORKED
"""Last word of any sampler in our frame: its screening trials are forked (``--start fork``)."""


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def code_sha256():
    """Of everything that decides what a replay yields and what is made of it: our code, and who draws."""
    whole = hashlib.sha256()
    for file in [*sorted((ROOT / "autotune").rglob("*.py")), *sorted(HERE.glob("*.py"))]:
        whole.update(f"{file.relative_to(ROOT)}\n{sha256(file)}\n".encode())
    for name in LIBRARIES:
        whole.update(f"{name} {_version(name)}\n".encode())
    return whole.hexdigest()[:16]


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


# Which tables may be opened --------------------------------------------------------------------


def split(part="held_out"):
    """Held-out tables, or those that were (`opened`): name -> {file, sha256}."""
    return json.loads(SPLIT.read_text()).get(part, {}) if SPLIT.is_file() else {}


def _write_split(held, opened):
    parts = {"held_out": held, "opened": opened}
    reported = {
        part: dict(sorted(tables.items())) for part, tables in parts.items() if tables or part == "held_out"
    }
    SPLIT.write_text(json.dumps(reported, indent=1) + "\n")


def hold(entries):
    """Put tables on the list of those that are not opened; only their bytes are hashed."""
    held, opened = split(), split("opened")
    seen = {entry["sha256"] for entry in opened.values()}
    for entry in entries:
        name, is_pair, text = entry.partition("=")
        file = Path(text).resolve()
        if not is_pair or not file.is_file():
            raise UsageError(f"{entry} names no file", hint="say NAME=FILE")
        if name in held and held[name]["sha256"] != sha256(file):
            raise UsageError(f"{name} is held out already, with other bytes")
        if name in opened or sha256(file) in seen:
            raise UsageError(
                f"{name} was held out once and has been looked at", hint="record another workload"
            )
        held[name] = {"file": os.path.relpath(file, ROOT), "sha256": sha256(file)}
    _write_split(held, opened)


def open_held_out():
    """What was held out may be looked at, once every search that was frozen is there."""
    held, opened = split(), split("opened")
    if not held:
        raise UsageError("no table is held out")
    lines = []
    if FROZEN.is_file():
        path = RESULTS / f"held-out-{json.loads(FROZEN.read_text())['code']}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    _, missing = analyse.frozen_part(lines, FROZEN)
    if missing is None or missing or json.loads(FROZEN.read_text())["held_out"] != held:
        raise UsageError("the held-out run is not there, or not whole", hint="run.py freeze, then held-out")
    _write_split({}, {**opened, **held})


def develop_files():
    """Recorded tables that are not held out, by the bytes and by the place; those that were come last."""
    held, opened = split(), split("opened")
    hashes, files = {h["sha256"] for h in held.values()}, {ROOT / h["file"] for h in held.values()}
    once = [ROOT / entry["file"] for entry in opened.values()]
    found = [f for f in sorted(GRIDS.glob("*/*.jsonl")) if f not in files and f not in once]
    return [f for f in [*found, *(f for f in once if f.is_file())] if sha256(f) not in hashes]


def requested_options(options):
    """What decides a held-out run: as it is frozen, and as it has to be again."""
    return {
        "code": code_sha256(),
        # They are part of the hash; whoever goes on elsewhere has to know which to install.
        "libraries": {name: _version(name) for name in LIBRARIES},
        "held_out": split(),
        "samplers": list(options.samplers),
        "seeds": options.seeds,
        "budget_s": options.budget,
        "workers": options.workers,
    }


def freeze(options):
    """Write down what the held-out run will be, before it is."""
    if not split():
        raise UsageError("no table is held out", hint="run.py hold NAME=FILE")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    frozen = {"date": today, **requested_options(options)}
    FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")


def held_out(options):
    """The tables, once everything is as it was frozen; the run is noted before the first is opened."""
    given = [name for name in ("tables", "out", "mixed") if getattr(options, name)]
    if given:
        raise UsageError(
            f"the held-out run takes no --{given[0]}",
            hint="all of its tables, into one file: nothing is chosen",
        )
    if not FROZEN.is_file():
        raise UsageError("nothing is frozen", hint="run.py freeze, and commit it, before the held-out run")
    frozen = json.loads(FROZEN.read_text())
    requested = requested_options(options)
    differs = [name for name, value in requested.items() if frozen[name] != value]
    if differs:
        raise UsageError(f"not what was frozen: {', '.join(differs)}", hint="freeze again; it is another run")
    files = {name: ROOT / entry["file"] for name, entry in split().items()}
    changed = [name for name, file in files.items() if sha256(file) != split()[name]["sha256"]]
    if changed:
        raise UsageError(f"other bytes than were held out: {', '.join(changed)}")
    began = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with HELD_RUNS.open("a") as lines:
        lines.write(json.dumps({"began": began, "frozen": sha256(FROZEN), "code": requested["code"]}) + "\n")
    return list(files.values())


# One search ------------------------------------------------------------------------------------


def means_of(label):
    """(the label without the last word, whether it forks)."""
    words = label.split()
    forked = len(words) > 1 and words[-1] == FORKED
    return " ".join(words[:-1] if forked else words), forked


def meant_by(label):
    """(sampler, parts of the planner) behind a label: ``staged without PART+PART`` leaves parts out."""
    label, forked = means_of(label)
    name = label.split()[0] if label else ""
    if forked and name not in SAMPLERS:
        raise UsageError(f"only what runs in our frame forks: {', '.join(SAMPLERS)}")
    name, is_after, when = label.partition(" after ")
    if is_after:
        if name != PLANNER or when not in AFTER:
            raise UsageError(f'there is no "{label}"', hint=did_you_mean(label, TRANSFER))
        return name, DEFAULT
    for word, present in ((" without ", False), (" with ", True)):
        name, is_there, parts = label.partition(word)
        if is_there:
            if name != PLANNER:
                raise UsageError(f"only {PLANNER} has parts")
            return name, DEFAULT.put(*parts.split("+"), present=present)
    if label not in EVERYBODY:
        raise UsageError(f'there is no sampler "{label}"', hint=did_you_mean(label, EVERYBODY))
    return label, DEFAULT


def one(world, key, earlier=()):
    """A search as a line; everything in it is a pure function of the key, but for `planning_s`."""
    sampler, parts = meant_by(key["sampler"])
    _, forked = means_of(key["sampler"])
    rival, truth = RIVALS.get(sampler), world.truth
    course = score.Course(truth, parts, is_bare=rival is not None and rival.is_bare)
    means = {"forked_start": world.forked_start} if forked else {}
    plain = ReplayRunner if rival is None else rival.runner
    runner = functools.partial(plain, machine=world.machine(key["seed"]), **means)
    ended = replay(
        world.table,
        budget_s=key["budget_s"],
        sampler=sampler,
        strategy=strategy_for(sampler, parts) if rival is None else rival.make(),
        seed=key["seed"],
        workers=key["workers"],
        runner=runner,
        each=course,
        earlier=earlier,
        start=StartPolicy.FORK if forked else StartPolicy.COLD,
    )
    found = course.close(ended.study)
    arrived = {
        column: {str(p): score.reached(course.points, p, place) for p in score.WITHIN}
        for place, column in ((2, "by_model"), (3, "by_reading"))
    }
    return {
        **key,
        "configs": len(truth.rates),
        "noise": world.notes,
        "base_quality": round(truth.quality(Config()), 5),
        "oracle": dict(truth.oracle),
        "oracle_speedup": round(truth.oracle_rate / truth.base, 5),
        "within": arrived,
        "curve": [[round(x, 4) for x in point] for point in course.points],
        "front": [[round(x, 4) for x in point] for point in course.front],
        "failures": score.failures(ended.study),
        "trials": len(ended.study.trials),
        "end_s": round(ended.study.elapsed_s, 1),
        "trial_s": round(ended.trial_s, 1),
        "planning_s": round(ended.planning_s, 2),
        **({"forked_start": world.forked_start} if forked else {}),
        **({"told": list(beliefs(ended.study).notes)} if earlier else {}),
        "answer": score.judged(truth, found),
    }


class Before:
    """What earlier searches report, each of them replayed once.

    Args:
        loads: Table -> function that makes a world of it, or of a variant.
    """

    def __init__(self, loads):
        self.loads, self.known = loads, {}

    def reported(self, key):
        """For a search by its key; nothing where it comes after none."""
        when = key["sampler"].partition(" after ")[2]
        if not when:
            return ()
        variant = "inverted" if "lie" in when else ""
        own = when in ("others", "lies")
        names = [name for name in self.loads if (name != key["table"]) is own]
        found = [self._one(name, variant, key["seed"], key["budget_s"]) for name in names]
        found = [reported for reported in found if reported is not None]
        if "change" in when:
            return tuple(replace(t, fingerprint=replace(t.fingerprint, script="another")) for t in found)
        return tuple(found)

    def _one(self, name, variant, seed, budget_s):
        key = (name, variant, seed, budget_s)
        if key not in self.known:
            world = self.loads[name](variant=variant)
            runner = functools.partial(ReplayRunner, machine=world.machine(EARLIER_SEEDS + seed))
            ended = replay(world.table, budget_s=budget_s, seed=EARLIER_SEEDS + seed, runner=runner)
            study = ended.study
            reported = lessons(study)
            label = f"{name}+{variant}" if variant else name
            self.known[key] = None if reported is None else replace(reported, study_id=label, label=label)
        return self.known[key]


def tables_of(kind, options):
    """(name, sha256, function that makes a world of it) of a set."""
    if kind == "synthetic":
        maker = sha256(HERE / "synthetic.py")
        for name in options.tables or synthetic.names(WORLDS):
            if name.rpartition("-")[0] not in synthetic.KINDS or not name.rpartition("-")[2].isdigit():
                hint = did_you_mean(name, synthetic.names(WORLDS))
                raise UsageError(
                    f"there is no synthetic table {name}", hint=hint or "input-0, compute-1, ..."
                )
            yield f"synthetic/{name}", maker, lambda name=name: worlds.world(synthetic.table(name))
        return
    files = held_out(options) if kind == "held-out" else develop_files()
    known = {name for f in files for name in (f.parent.name, f"{f.parent.name}/{f.stem}")}
    for name in options.tables:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or f"one of: {', '.join(sorted(known))}"
            raise UsageError(f"there is no table {name} that may be looked at", hint=hint)
    for file in files:
        workload = file.parent.name
        if options.tables and not {workload, f"{workload}/{file.stem}"} & set(options.tables):
            continue
        for variant in worlds.VARIANTS if kind == "adverse" else ("",):
            name = f"{workload}+{variant}" if variant else workload

            def load(file=file, variant=variant):
                return worlds.world(decode(file.read_bytes(), source=file.name), variant)

            yield f"{name}/{file.stem}", sha256(file), load


def every_table(kind, options, tables):
    """Those that earlier searches are of; where one receives what others have seen, all that are open."""
    if kind != "transfer":
        return tables
    return list(tables_of(kind, argparse.Namespace(**{**vars(options), "tables": []})))


def results_of(kind, options):
    """Where the lines of a set go; every frozen version has a file of its own, none is mixed with another."""
    if kind == "held-out":
        kind = f"held-out-{code_sha256()}"
    return options.out or RESULTS / f"{kind}.jsonl"


def run(kind, options):
    """Every search of a set that is not there yet, as far as the time goes; the file of results."""
    code, path = code_sha256(), results_of(kind, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
    if any(line["set"] != kind for line in known):
        raise UsageError(f"{path.name} holds another set of tables", hint="sets are never mixed")
    others = {line["code"] for line in known} - {code}
    if others and not options.mixed:
        raise UsageError(
            f"{path.name} was made by other code ({', '.join(sorted(others))})",
            hint="--out a new file, or --mixed to compare versions in one",
        )
    names = ("set", "table", "table_sha256", "sampler", "seed", "workers", "budget_s", "code")
    done = {tuple(line[n] for n in names) for line in known}
    tables = list(tables_of(kind, options))
    shas = {name: table_sha for name, table_sha, _ in tables}
    # Seeds outermost: whatever is there when it is stopped is balanced over tables and samplers.
    wanted = [
        (kind, table, shas[table], sampler, seed, workers, options.budget, code)
        for seed, table, sampler, workers in itertools.product(
            range(options.seeds), shas, options.samplers, workers_of(kind, options)
        )
    ]
    keys = [dict(zip(names, values, strict=True)) for values in wanted if values not in done]
    searches = Searches(
        {name: load for name, _, load in tables},
        Before({name: load for name, _, load in every_table(kind, options, tables)}),
    )
    for line, took_s in searched(searches, keys[: options.most or None], options.until, options.jobs):
        with path.open("a") as lines:
            lines.write(json.dumps(line, allow_nan=False) + "\n")
        print(f"{reported(line)}, {took_s:.1f} s real", flush=True)
    return path


def reported(line):
    """A search for people; of one that is held out that it is there, and no more."""
    name = f"{line['table']} {line['sampler']} seed {line['seed']}, {line['workers']} at once"
    if line["set"] == "held-out":
        return name
    at = line["within"]["by_model"]["2"]
    arrived = "never" if at is None else f"{at[1]:.0f} s"
    return f"{name}: within 2 % {arrived}, {sum(line['failures'].values())} failures"


class Searches:
    """Searches by their keys; a table is opened when the first search of it begins.

    Args:
        loads: Table -> function that makes a world of it.
        before: Records of earlier searches.
    """

    inherited = None

    def __init__(self, loads, before):
        self.loads, self.before, self.opened = loads, before, {}

    def __call__(self, key):
        begun_s, name = time.monotonic(), key["table"]
        if name not in self.opened:
            self.opened[name] = self.loads[name]()
        return one(self.opened[name], key, self.before.reported(key)), time.monotonic() - begun_s


def _inherit(searches):
    """In a process that searches for another: what loads a table cannot be sent to it, only inherited."""
    Searches.inherited = searches


def _search(key):
    return Searches.inherited(key)


def searched(searches, keys, until, jobs):
    """(line, real seconds) of each key, as they are done; none is begun after `until`.

    Every search is a pure function of its key, so it does not matter in how many processes they run.
    """
    if jobs < 2:
        for key in keys:
            if time.monotonic() >= until:
                return
            yield searches(key)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("fork"), initializer=_inherit, initargs=(searches,)
    )
    with pool:
        rest, running = iter(keys), set()
        while True:
            begun = itertools.islice(rest, jobs - len(running)) if time.monotonic() < until else ()
            running |= {pool.submit(_search, key) for key in begun}
            if not running:
                return
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            yield from (future.result() for future in done)


def run_all(options):
    """Everything on tables that may be opened, seed by seed, so that whatever is there is balanced."""
    paths = {}
    for seeds, kind in itertools.product(range(1, options.seeds + 1), ALL):
        if len(paths) == len(ALL) and time.monotonic() >= options.until:
            break
        own = {"samplers": options.samplers or samplers_of(kind), "seeds": seeds, "out": None}
        paths[kind] = run(kind, argparse.Namespace(**{**vars(options), **own}))
    return list(paths.values())


def samplers_of(kind):
    """Who takes part where nobody is named."""
    named = {"ablations": ABLATIONS, "adverse": ADVERSE, "parallel": PARALLEL, "transfer": TRANSFER}
    return named.get(kind, EVERYBODY)


def workers_of(kind, options):
    """Processes at once, one number after the other."""
    return WORKERS if kind == "parallel" else (options.workers,)


def seconds(text):
    """``90``, ``90s``, ``20m``, ``2h``."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS_S else (text, "s")
    return float(number) * UNITS_S[unit]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("all", *ALL, *OTHERS))
    parser.add_argument("names", nargs="*", help="hold: NAME=FILE")
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--samplers", type=lambda text: text.split(","), default=[])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="virtual seconds")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--most", type=int, default=0, help="so many searches in this call")
    parser.add_argument("--jobs", type=int, default=1, help="so many searches at once, in processes")
    parser.add_argument("--limit", type=seconds, default=math.inf, help="real time: begin none after 20m, 2h")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mixed", action="store_true", help="lines of other code may stand in the same file")
    options = parser.parse_args()
    options.until = time.monotonic() + options.limit
    if options.what != "all":
        options.samplers = options.samplers or list(samplers_of(options.what))
    for sampler in options.samplers:
        try:
            meant_by(sampler)
        except UsageError as error:
            parser.error(f"{error.message}. {error.hint}")
    return options


def main():
    options = arguments()
    try:
        if options.what == "hold":
            hold(options.names)
        elif options.what == "freeze":
            freeze(options)
        elif options.what == "open":
            open_held_out()
        else:
            paths = run_all(options) if options.what == "all" else [run(options.what, options)]
            for path in paths:
                analyse.write(path)
    except AutotuneError as error:
        sys.exit(f"{error.message}. {error.hint}".rstrip(" ."))


if __name__ == "__main__":
    main()
