"""What do short searches answer, how do they spend their budget, and do their claims hold?

    python experiments/first_answer/run.py setup                 # environments and data; minutes
    python experiments/first_answer/run.py plan                  # what is left, and its minutes
    python experiments/first_answer/run.py run --tree ../before  # hours; continues where it stopped
    python experiments/first_answer/run.py best                  # times known.yaml as well
    python experiments/first_answer/run.py busy                  # three searches beside a busy process
    python experiments/first_answer/run.py table                 # results/first_answer.md

Each finished search is a line of ``results/searches.jsonl``, each timed run one of ``results/timings.jsonl``.
Environments, data, studies and best.yaml files are in the `--work` folder.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e_speedup"), str(HERE.parent / "third_party")]

import first_answer_figures as figures  # noqa: E402 (needs the path set above)
import first_answer_scripts as scripts  # noqa: E402 (needs the path set above)
import first_answer_timing as timing  # noqa: E402 (needs the path set above)
import searching  # noqa: E402 (needs the path set above)
import third_party_judge as judge  # noqa: E402 (needs the path set above)
import timer  # noqa: E402 (needs the path set above)

ROOT = HERE.parents[1]
RESULTS = HERE / "results"
SAMPLERS = {"tpe": "tpe", "random": "random"}
ARMS_A_ROUND = 3
"""Most configurations between two runs of the script, so that a pair is minutes apart at most."""
ROUNDS = 4
WARM_S = 4.0
WINDOW_S = 10.0
RUN_LIMIT_S = 240.0
START_S = 8.0
"""Usual start-up of a run; for the plan alone."""
CHECK_S = 5.0
SPINNER = "autotune-bench"
"""Name of the busy process; 15 characters at most, which is what Linux keeps of it."""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("setup", "plan", "run", "best", "busy", "table"))
    parser.add_argument("--only", default="", metavar="SCRIPT,...", help="scripts; default: all")
    parser.add_argument(
        "--arm", default="", metavar="ARM,...", help=f"of {', '.join(figures.ARMS)}; default: all"
    )
    parser.add_argument("--budget", default="", metavar="5m,...", help="budgets; default: all")
    parser.add_argument("--seeds", default="", metavar="1,2", help="seeds; default: all")
    parser.add_argument("--tree", type=Path, help="checkout of the commit that the arm `before` runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed pairs per configuration")
    parser.add_argument("--work", type=Path, default=work_folder(), help="environments, data and studies")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    args = parser.parse_args()
    args.scripts = scripts.select(scripts.load(), args.only)
    if args.what == "setup":
        raise SystemExit(setup(args))
    searching.check_tree()
    searching.end_on_signals()
    experiment = Experiment(args)
    {
        "plan": experiment.plan,
        "run": experiment.run,
        "best": experiment.best,
        "busy": experiment.busy,
        "table": experiment.table,
    }[args.what]()


def work_folder():
    """The default of `--work`: outside the project and outside /tmp, as a user's environments are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune-first-answer"


def setup(args):
    """Make what is missing, then check that each script trains and is accepted; return the exit code."""
    bad = 0
    for script in args.scripts:
        bench = scripts.Bench(script, args.work)
        reason = bench.setup() or check(bench)
        bad += bool(reason)
        print(f"{script.name}: {reason or 'ready'}", flush=True)
    return 1 if bad else 0


def check(bench):
    """Return why a script cannot take part, or an empty text."""
    bench.fresh()
    found = timing.run_once(
        bench.command,
        cwd=bench.place,
        variables=bench.variables,
        warm_s=1.0,
        window_s=CHECK_S,
        limit_s=RUN_LIMIT_S,
    )
    if "failed" in found:
        return f"it does not train: {found['failed']}"
    print(
        f"{bench.script.name}: first step after {found['start_s']:.1f} s, {found['rate']:.1f} {found['unit']}"
    )
    with tempfile.TemporaryFile("w+") as output:
        code = searching.run_autotune(
            ["inspect", "--static", "--json", "--python", bench.python, "--", *bench.command],
            cwd=bench.place,
            stdout=output,
            stderr=subprocess.STDOUT,
            variables={**bench.variables, "PYTHONPATH": str(ROOT)},
        )
        output.seek(0)
        return "" if code == 0 else f"autotune inspect: exit {code}: {output.read().strip()[-200:]}"


class Experiment:
    """What is done, on this machine and by this code, and everything that adds to it."""

    def __init__(self, args):
        self.args = args
        self.machine = {**timer.machine(), "id": machine_id()}
        self.trees = dict.fromkeys((*figures.ARMS, "busy"), ROOT)
        self.trees["before"] = args.tree.resolve() if args.tree else None
        self.codes = {arm: code_of(tree) for arm, tree in self.trees.items() if tree}
        self.benches = {script.name: scripts.Bench(script, args.work) for script in args.scripts}

    # Results ----------------------------------------------------------------------------------

    def lines(self, kind):
        """The lines of one file that were made on this machine."""
        path = self.args.results / f"{kind}.jsonl"
        texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in map(json.loads, texts) if line["machine"]["id"] == self.machine["id"]]

    def timings(self):
        """The timed runs that count: those of rounds that no other process disturbed."""
        return figures.undisturbed(self.lines("timings"))

    def add(self, kind, line):
        self.args.results.mkdir(parents=True, exist_ok=True)
        line = {**line, "machine": self.machine, "date": datetime.date.today().isoformat()}
        with (self.args.results / f"{kind}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def searched(self, script="", *, of_any_code=False):
        """The last line of each search, of this code where its tree is at hand."""
        found = {}
        for line in self.lines("searches"):
            if of_any_code or line["code"] == self.codes.get(line["arm"], line["code"]):
                found[line["script"], line["arm"], line["budget"], line["seed"]] = line
        return [line for line in found.values() if script in ("", line["script"])]

    def is_done(self, search):
        key = (search.script, search.arm, search.budget, search.seed)
        return any((s["script"], s["arm"], s["budget"], s["seed"]) == key for s in self.searched())

    # Plan -------------------------------------------------------------------------------------

    def steps(self):
        """Searches that are missing, by script and phase."""
        split = {name: tuple(filter(None, getattr(self.args, name).split(","))) for name in ("arm", "budget")}
        seeds = tuple(int(seed) for seed in self.args.seeds.split(",") if seed)
        for step in figures.planned(
            self.args.scripts, arms=split["arm"], budgets=split["budget"], seeds=seeds
        ):
            missing = tuple(search for search in step if not self.is_done(search))
            yield step[0].script, missing

    def plan(self):
        searches = [search for _, missing in self.steps() for search in missing]
        for search in searches:
            note = "  (needs --tree)" if self.trees[search.arm] is None else ""
            print(f"{search.script:16} {search.arm:7} {search.budget:>4} seed {search.seed}{note}")
        run_s = START_S + WARM_S + WINDOW_S
        # Before a search has ended its claim is not known: each may add one configuration.
        arms = len(searches) + sum(len(self.missing_arms(name)) for name in self.benches)
        runs = arms * self.args.rounds * (ARMS_A_ROUND + 1) / ARMS_A_ROUND
        minutes = figures.minutes_left(searches, 0, run_s)
        print(f"{len(searches)} searches, at most {minutes:.0f} minutes")
        print(f"timing their claims: at most {figures.minutes_left((), runs, run_s):.0f} minutes")
        known = sum(len(each or ()) for name, each in scripts.known().items() if name in self.benches)
        runs = known * self.args.rounds * (ARMS_A_ROUND + 1) / ARMS_A_ROUND
        print(f"`run.py best`: at most {figures.minutes_left((), runs, run_s):.0f} minutes")
        busy = sum(figures.seconds(budget) for _, budget, _ in figures.BUSY)
        print(f"`run.py busy`: at most {busy / 60:.0f} minutes and its timing")

    # Searches ---------------------------------------------------------------------------------

    def run(self):
        for name, missing in self.steps():
            for search in missing:
                if self.trees[search.arm] is None:
                    print(f"{search.name}: skipped, --tree is not given", flush=True)
                    continue
                self.search(search)
            self.time(name)
        self.table()

    def folder(self, line):
        """Where the study and the best.yaml of a search are."""
        return self.args.work.resolve() / "searches" / line["code"] / line["name"]

    def search(self, search, variables=None):
        """Run one search from nothing and add its line."""
        bench, tree, code = self.benches[search.script], self.trees[search.arm], self.codes[search.arm]
        folder = self.folder({"code": code, "name": search.name})
        # A search that was cut off starts anew: its wall time counts.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        bench.fresh()
        words = ["search", "--budget", search.budget, "--seed", str(search.seed), "--json"]
        words += ["--python", bench.python, "--out", str(folder / "best.yaml")]
        if search.arm in SAMPLERS:
            words += ["--sampler", SAMPLERS[search.arm], "--start", "cold"]
        print(f"{search.name}: ...", flush=True)
        began = time.monotonic()
        with (folder / "result.json").open("w") as out, (folder / "log.txt").open("w") as log:
            exit_code = searching.run_autotune(
                [*words, "--", *bench.command],
                cwd=bench.place,
                stdout=out,
                stderr=log,
                home=folder / "home",
                variables={**bench.variables, "PYTHONPATH": str(tree), **(variables or {})},
                limit_s=2 * search.budget_s + 120,
            )
        wall_s = time.monotonic() - began
        line = self.line(search, folder, exit_code, wall_s)
        self.add("searches", line)
        claim = figures.ratio(line["claim"]) if line["claim"] else "no claim"
        print(
            f"{search.name}: {wall_s:.0f} s, {line['tried']} tried, {figures.outcome(exit_code)}, {claim}",
            flush=True,
        )

    def line(self, search, folder, exit_code, wall_s):
        """Return the line of a search that has ended."""
        code, tree = self.codes[search.arm], self.trees[search.arm]
        text, log = ((folder / name).read_text(errors="replace") for name in ("result.json", "log.txt"))
        try:
            result = json.loads(text)
        except ValueError:
            result = {}
        claim, likely = figures.claim_of(result), figures.picked(result, "likely")
        bench = self.benches[search.script]
        return {
            "name": search.name,
            "script": search.script,
            "arm": search.arm,
            "budget": search.budget,
            "seed": search.seed,
            "code": code,
            "commit": git(tree, "rev-parse", "--short=12", "HEAD"),
            "exit": exit_code,
            "wall_s": round(wall_s, 1),
            **figures.journal_figures(
                trials_of(folder / "home", tree), budget_s=search.budget_s, wall_s=wall_s
            ),
            "claim": claim,
            "claimed_arm": arm_name(code, claim["knobs"]) if claim else figures.BASELINE,
            "likely": likely,
            "likely_arm": arm_name(code, likely["knobs"]) if likely else "",
            "names_load": SPINNER in text or SPINNER in log,
            "result": judge.scrubbed_data(result, (bench.place, folder, self.args.work, sys.prefix)),
            "log": judge.scrubbed(log[-2000:], (bench.place, folder, self.args.work, sys.prefix)),
        }

    # Timing -----------------------------------------------------------------------------------

    def claims(self, script):
        """{arm: command and tree} of every configuration that a search recommends for this script."""
        found = {}
        for line in self.searched(script):
            for name, arm, pick in (
                ("claim", line["claimed_arm"], ""),
                ("likely", line["likely_arm"], "likely"),
            ):
                folder = self.folder(line)
                if line[name] and arm not in found and (folder / "best.yaml").exists():
                    found[arm] = self.applied(script, line["arm"], folder, folder / "best.yaml", pick)
        return found

    def applied(self, script, arm, folder, best, pick=""):
        """How `autotune apply` of that file is started."""
        bench, tree = self.benches[script], self.trees[arm]
        words = [sys.executable, "-m", "autotune", "apply", str(best), *(["--pick", pick] if pick else [])]
        home = {"AUTOTUNE_HOME": str(folder / "home"), "AUTOTUNE_TRANSFER": "off"}
        command = [*words, "--python", bench.python, "--", *bench.command]
        return {"command": command, "tree": tree, "variables": {**bench.variables, **home}}

    def missing_arms(self, script, arms=None):
        """{arm: how it is started} of those that have not been timed in all rounds."""
        arms = self.claims(script) if arms is None else arms
        runs = [run for run in self.timings() if run["script"] == script]
        done = {arm: sum(run["arm"] == arm for run in runs) for arm in arms}
        return {arm: how for arm, how in arms.items() if done[arm] < self.args.rounds and how["tree"]}

    def time(self, script, arms=None):
        """Time what is missing in interleaved rounds: the script and up to `ARMS_A_ROUND` configurations."""
        while missing := self.missing_arms(script, arms):
            now = dict(list(missing.items())[:ARMS_A_ROUND])
            rounds = [run["round"] for run in self.lines("timings") if run["script"] == script]
            self.round(script, now, max(rounds, default=-1) + 1)

    def round(self, script, arms, number):
        bench = self.benches[script]
        plain = {"command": bench.command, "tree": None, "variables": bench.variables}
        everything = {figures.BASELINE: plain, **arms}
        names = list(everything)
        shift = number % len(names)
        found = {}
        for name in (*names[shift:], *names[:shift]):
            if "compile_mode" in name and not any(run["arm"] == name for run in self.lines("timings")):
                self.timed(bench, everything[name])  # fills the compile cache; its figure is discarded
            found[name] = self.timed(bench, everything[name])
            shown = found[name].get("failed") or f"{found[name]['rate']:.1f} {found[name]['unit']}"
            print(f"{script} round {number} {name}: {shown}", flush=True)
        # Added together: a round that was cut off is repeated as a whole.
        for name, run in found.items():
            self.add("timings", {"script": script, "arm": name, "round": number, **run})

    def timed(self, bench, how):
        bench.fresh()
        return timing.run_once(
            how["command"],
            cwd=bench.place,
            variables=how["variables"],
            tree=how["tree"],
            warm_s=WARM_S,
            window_s=WINDOW_S,
            limit_s=RUN_LIMIT_S,
        )

    def best(self):
        """Time the configurations of known.yaml and every claim that is not timed yet."""
        for script in self.benches:
            self.time(script)
            self.time(script, self.hand_picked(script))
        self.table()

    def hand_picked(self, script):
        """{arm: how it is started} of known.yaml; needs a finished search of `after`, whose facts it uses."""
        # Late: reading a study loads the package, which a table does not need.
        import oracle

        from autotune.cli.open_study import open_study
        from autotune.export.best_config import write_best
        from autotune.knobs.registry import knobs_for
        from autotune.model.config import Config
        from autotune.space.choose_delivery import choose

        wanted = scripts.known().get(script) or ()
        lines = [line for line in self.searched(script) if line["arm"] == "after"]
        paths = [path for line in lines for path in (self.folder(line) / "home" / "studies").glob("*")]
        opened = ((path, open_study(path).study) for path in paths)
        measured = ((path, study) for path, study in opened if study.facts and study.facts.run)
        path, study = next(measured, (None, None))
        if study is None:
            print(f"{script}: known.yaml is timed once a search of `after` has measured it", flush=True)
            return {}
        found = {}
        for knobs in wanted:
            arm = arm_name(self.codes["after"], knobs)
            config = Config(knobs)
            changes, refused = choose(config, study.facts, knobs_for(study.spec.space))
            if refused:
                print(f"{script} {scripts.label(knobs)}: refused: {refused[0].reason}", flush=True)
                if not any((run["script"], run["arm"]) == (script, arm) for run in self.lines("timings")):
                    line = {"script": script, "arm": arm, "round": -1, "failed": "refused"}
                    self.add("timings", line)
                continue
            digest = hashlib.sha256(arm.encode()).hexdigest()[:12]
            best = self.args.work.resolve() / "known" / f"{script}-{digest}.yaml"
            best.parent.mkdir(parents=True, exist_ok=True)
            best.unlink(missing_ok=True)
            write_best(best, study, oracle.as_answer(config), lambda _, changes=changes: changes)
            found[arm] = self.applied(script, "after", path.parents[2], best)
        return found

    # Beside a busy process --------------------------------------------------------------------

    def busy(self):
        """Run the searches of `figures.BUSY` beside a busy process; then time their claims without it."""
        names = [script.name for script in self.args.scripts] if self.args.only else [figures.BUSY_SCRIPT]
        for name in names:
            for arm, budget, seed in figures.BUSY:
                search = figures.Search(script=name, arm=arm, budget=budget, seed=seed)
                if not self.is_done(search) and self.args.budget in ("", budget):
                    with spinning(self.args.work.resolve()):
                        self.search(search)
            self.time(name)
        self.table()

    # Table ------------------------------------------------------------------------------------

    def table(self):
        lines, runs = self.searched(of_any_code=True), self.timings()
        if not lines:
            print("there are no results of this machine yet")
            return
        codes = {}
        for line in lines:
            codes.setdefault(line["arm"], set()).add(line["commit"])
        timed = {(run["script"], run["arm"]) for run in runs}
        states = {line["code"] for line in lines if line["arm"] == "after"}
        hand_picked = {
            name
            for name, each in scripts.known().items()
            if all(any((name, arm_name(code, knobs)) in timed for code in states) for knobs in each or ())
        }
        text = figures.report(
            figures.rows(lines, runs, timer.interval),
            runs,
            timer.interval,
            order=[script.name for script in scripts.load()],
            machine={**self.machine, "date": max(line["date"] for line in lines)},
            codes=codes,
            hand_picked=hand_picked,
        )
        (self.args.results / "first_answer.md").write_text(text, encoding="utf-8")
        print(text)


def arm_name(code, knobs):
    """Return the name of a configuration that code of that digest applies."""
    return f"{code} {scripts.label(knobs)}"


def machine_id():
    """Return a digest that is different on every machine and contains no name of one."""
    own = Path("/etc/machine-id")
    text = own.read_text().strip() if own.exists() else ""
    return hashlib.sha256(json.dumps([text, timer.machine()]).encode()).hexdigest()[:12]


def git(tree, *words):
    done = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)} fails in {tree}: {done.stderr.strip()}")
    return done.stdout.strip()


def code_of(tree):
    """Return a digest of the package in a checkout; other folders may change without another one."""
    digest = git(tree, "rev-parse", "HEAD:autotune")[:12]
    return f"{digest}-changed" if git(tree, "status", "--porcelain", "--", "autotune") else digest


def trials_of(home, tree):
    """Return the trials of the only study in that home, as the code that wrote it reads them."""
    with tempfile.TemporaryFile("w+") as output:
        searching.run_autotune(
            ["show", "--trials", "--json"],
            cwd=home.parent,
            stdout=output,
            stderr=subprocess.DEVNULL,
            home=home,
            variables={**os.environ, "PYTHONPATH": str(tree)},
        )
        output.seek(0)
        try:
            return json.load(output).get("trials", [])
        except ValueError:
            return []


@contextlib.contextmanager
def spinning(folder):
    """Keep one core busy with a process that is called `SPINNER`."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / SPINNER
    link.unlink(missing_ok=True)
    link.symlink_to(Path(sys.executable).resolve())
    process = subprocess.Popen([str(link), "-S", "-c", "while True: pass"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
