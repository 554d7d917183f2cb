"""Is there anything better that a search misses? Compare its answer with the best of a recorded grid.

    python oracle.py [photos_denoise ...] --budget 10m [--pairs 10] [--most-pairs 24] [--table FILE]

Four stages, each taken up where it stopped: the five fastest configurations of the grid by their medians;
these again in interleaved fresh processes, which names the oracle; a real `autotune search`; the search's
answer against the oracle in fresh interleaved pairs, beside the oracle against itself. Everything goes to
`results/<workload>.oracle.json`. The grid comes from `experiments/grids/record.py`.
"""

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import searching
import timer
import yaml

from autotune.answer.answer import Answer, Recommendation, SearchOutcome
from autotune.errors import AutotuneError
from autotune.export.best_config import write_best
from autotune.inspection.host import host_facts
from autotune.inspection.script import script_facts
from autotune.knobs.registry import knobs_for
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.measurement import Estimate
from autotune.model.study import Budget, Study, StudySpec
from autotune.model.trial import FailureKind
from autotune.space.choose_delivery import choose
from autotune.testing.table import decode

HERE = Path(__file__).resolve().parent
GRIDS = HERE.parent / "grids"
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(GRIDS))
from record import FOR_CUDA, device_name, file_name  # noqa: E402 (needs the path set above)

FINALISTS = 5
CYCLES = 6
LEAST_CONFIGS = 60
LEAST_ON_DEVICE = 20
"""Grids for a CUDA device are small on purpose: its time is rented, and a repeat should take minutes."""
LEAST_SHARE = 0.95
MOST_HALF_WIDTH = 0.05
MOST_FOREIGN_CORES = 0.15
COMPILE_LIMIT_S = 900.0
FINAL_ORDERS = list(itertools.permutations(("oracle", "search", "again")))


# Stage 1: the grid's own opinion ---------------------------------------------------------------


def objective(row, header):
    """What a search ranks by: samples per second of the planned run, this run's own compile charged to it."""
    rate = row.throughput(header.workload.unit)
    if rate is None:
        return None
    return planned_rate(rate.value, planned_samples(header), row.compile_s)


def planned_rate(rate, samples, compile_s):
    """Samples per second over a run of so many samples, with seconds of compiling paid once in it.

    The rate alone where the length of the run is not known, or nothing is compiled.
    """
    return samples / (samples / rate + compile_s) if samples and compile_s else rate


def planned_samples(header):
    """Samples of the whole real run; steps where samples are not confirmed; None where unknown."""
    steps, batch = header.workload.planned_steps, header.workload.effective_batch
    if steps is None:
        return None
    if header.workload.unit == "steps/s":
        return steps
    return None if batch is None else steps * batch


def ranking(table):
    """Every configuration that was measured, fastest first: config, median, rates, processes that failed.

    A disturbed run counts only where a configuration has no other.
    """
    found = []
    for config in table.header.configs:
        rows = [row for row in table.settled().values() if row.config == config and not row.sentinel]
        rated = [(row, objective(row, table.header)) for row in rows]
        rates = [rate for row, rate in rated if rate is not None and not row.is_disturbed]
        rates = rates or [rate for _, rate in rated if rate is not None]
        if rates:
            found.append(
                {
                    "config": dict(config),
                    "median": statistics.median(rates),
                    "rates": rates,
                    "failed": sum(not row.is_ok for row in rows),
                }
            )
    return sorted(found, key=lambda entry: -entry["median"])


def finalists(ranked, count=FINALISTS):
    """The fastest that change anything; the unchanged script takes part in any case."""
    return [entry for entry in ranked if entry["config"]][:count]


# Stages 2 and 4: a stopwatch of its own --------------------------------------------------------


def run_s(figures, samples):
    """Seconds of the whole run: to the first step, what is done once, then training at the measured rate."""
    if samples is None or figures.get("start_s") is None:
        return 1.0 / figures["samples_per_s"]
    return figures["start_s"] + figures.get("once_s", 0.0) + samples / figures["samples_per_s"]


def disturbed(runs):
    """Cycles in one of whose runs others used so much of the machine that no ratio of it says anything.

    By what was seen of others alone, whichever run it was and whatever came out.
    """
    return sorted({run["cycle"] for run in runs if (run.get("foreign_cores") or 0.0) > MOST_FOREIGN_CORES})


def undisturbed(runs, arms):
    """Cycles in which every arm had its turn, failures included, and others left the machine alone."""
    spoilt, seen = set(disturbed(runs)), {}
    for run in runs:
        seen.setdefault(run["cycle"], set()).add(run["arm"])
    return sorted(cycle for cycle, found in seen.items() if cycle not in spoilt and set(arms) <= found)


def ratios(runs, above, below, figure):
    """How many times as fast `above` is as `below`, cycle by cycle; whole, undisturbed cycles only."""
    cycles, spoilt = {}, set(disturbed(runs))
    for run in runs:
        if "failed" not in run and run["cycle"] not in spoilt:
            cycles.setdefault(run["cycle"], {})[run["arm"]] = figure(run)
    return [arms[below] / arms[above] for _, arms in sorted(cycles.items()) if {above, below} <= set(arms)]


def interval(values):
    """Geometric mean with its 95 % interval, None without a value."""
    return timer.interval([math.log(x) for x in values]) if values else None


def half_width(ratio):
    """Half of an interval as a share of its middle; infinite where there is none."""
    if ratio is None or ratio["low"] is None:
        return math.inf
    return (ratio["high"] - ratio["low"]) / 2 / ratio["value"]


def turned(arms, cycle):
    """Another arm first in every cycle; once each was first, backwards."""
    shift = cycle % len(arms)
    line = [*arms[shift:], *arms[:shift]]
    return line[::-1] if cycle // len(arms) % 2 else line


def verdict(ratio, same):
    """``pass``, ``fail`` or ``unresolved``.

    `ratio` is search over oracle, `same` the oracle over itself; a machine that finds a difference between
    equals settles nothing, and neither does a wide interval, unless all of it lies below the limit.
    """
    if ratio is None or ratio["low"] is None or not same or same["low"] is None:
        return "unresolved"
    if not same["low"] <= 1.0 <= same["high"]:
        return "unresolved"
    if ratio["high"] < LEAST_SHARE:
        return "fail"
    if half_width(ratio) > MOST_HALF_WIDTH:
        return "unresolved"
    return "pass" if ratio["value"] >= LEAST_SHARE else "fail"


def nothing_to_gain(search_exit, ratio):
    """The search claims nothing, and the oracle's gain over the unchanged script is not clear either."""
    return search_exit == 1 and ratio is not None and ratio["high"] is not None and ratio["high"] >= 1.0


# The experiment --------------------------------------------------------------------------------


class Experiment:
    """One workload; its state is the result file."""

    def __init__(self, name, options):
        self.name = name
        self.options = options
        self.script = script_of(name)
        self.work = HERE / "work" / f"{self.name}.oracle"
        self.work.mkdir(parents=True, exist_ok=True)
        self.result = options.result or HERE / "results" / f"{self.name}.oracle.json"
        path = options.table or one_table(GRIDS / self.name)
        data = path.read_bytes()
        self.table = decode(data, source=path.name)
        self.table_sha256 = hashlib.sha256(data).hexdigest()
        check_table(self.table, path)
        self.samples = planned_samples(self.table.header)
        identity = {
            "script": self.script.name,
            "script_sha256": hashlib.sha256(self.script.read_bytes()).hexdigest(),
            "args": list(self.table.header.workload.args),
            "table": self.table.header.table,
            "grid_sha256": self.table.header.grid_sha256,
            "budget": options.budget,
            "warm_s": options.warm,
            "window_s": options.window,
        }
        if identity["script_sha256"] != self.table.header.workload.script_sha256:
            raise SystemExit(f"{self.script.name} is not the script that was recorded; record it again")
        self.state = {"identity": identity, "machine": timer.machine(), "dates": []}
        if self.result.exists() and not options.fresh:
            earlier = json.loads(self.result.read_text())
            differs = [k for k, v in identity.items() if earlier["identity"].get(k) != v]
            differs += ["machine"] if earlier["machine"] != self.state["machine"] else []
            if differs:
                raise SystemExit(
                    f"{self.result.name} is of another {', '.join(differs)}; --fresh begins it anew"
                )
            self.state = earlier
        today = datetime.date.today().isoformat()
        self.state["dates"] = sorted({*self.state["dates"], today})

    @property
    def plain(self):
        """The unchanged script."""
        return [sys.executable, str(self.script), *self.table.header.workload.args]

    def tuned(self, best):
        """The same under a best.yaml."""
        return [sys.executable, "-m", "autotune", "apply", str(best), "--", *self.plain]

    def save(self):
        timer.write(self.result, self.state)

    # -- stage 1

    def rank(self):
        if "finalists" not in self.state:
            ranked = ranking(self.table)
            if not finalists(ranked):
                raise SystemExit("the table holds no configuration that was measured")
            own = next((entry["median"] for entry in ranked if not entry["config"]), None)
            self.state["grid"] = {
                "table_sha256": self.table_sha256,
                "configs": len(self.table.header.configs),
                "measured": len(ranked),
                "rows": len(self.table.rows),
                "baseline_median": own,
                "ranking": [[entry["config"], entry["median"]] for entry in ranked],
            }
            self.state["finalists"] = finalists(ranked)
            self.save()
        for number, entry in enumerate(self.state["finalists"]):
            self.write_best(number, Config(entry["config"]))

    def best_of(self, number):
        return self.work / f"grid{number}.yaml"

    def write_best(self, number, config):
        """A file that `autotune apply` takes, for a configuration of the grid."""
        path = self.best_of(number)
        path.unlink(missing_ok=True)
        header = self.table.header
        dead = frozenset(
            (row.evidence.get("knob", ""), "flag")
            for row in self.table.rows
            if row.kind == FailureKind.CONFIG_REJECTED.label and row.evidence.get("how") == "flag"
        )
        # Paths in a table are bare names, so this machine is searched for them again.
        facts = replace(header.facts, host=host_facts(), script=script_facts(str(self.script)))
        changes, refusals = choose(config, facts, knobs_for(header.request), dead=dead)
        if refusals:
            raise SystemExit(f"{config.text()} cannot be had any more: {refusals[0].reason}")
        spec = StudySpec(
            study_id="grid",
            label=f"grid-{self.name}",
            script=str(self.script),
            args=header.workload.args,
            cwd=str(self.script.parent),
            python=sys.executable,
            space=header.request,
            budget=Budget(seconds=0.0),
        )
        study = Study(spec=spec, facts=facts)
        write_best(path, study, as_answer(config), lambda wanted: changes if wanted == config else ())

    # -- running

    def measure(self, runs, cycle, arm, command):
        """One fresh process, appended to `runs` and saved; a failure is a value."""
        limit_s = self.options.warm + self.options.window + 300.0
        figures = timer.run_or_failed(
            command, warm_s=self.options.warm, window_s=self.options.window, limit_s=limit_s
        )
        runs.append({"cycle": cycle, "arm": arm, **figures})
        print(f"cycle {cycle} {arm:8} {timer.reported(figures)}", file=sys.stderr, flush=True)
        self.save()

    def prime(self, commands):
        """Compile caches are filled outside of every comparison, in each sitting: they may be gone by then.

        A run as long as those that count, so that it meets the same shapes.
        """
        for arm, command in commands.items():
            print(f"priming {arm}", file=sys.stderr, flush=True)
            try:
                timer.run_once(
                    command,
                    warm_s=self.options.warm,
                    window_s=self.options.window,
                    limit_s=COMPILE_LIMIT_S,
                )
            except SystemExit as failed:
                print(f"{arm} failed: {failed}", file=sys.stderr)

    def kept(self, name):
        """Runs of earlier sittings; what failed then is run again."""
        self.state[name] = [run for run in self.state.get(name, []) if "failed" not in run]
        return self.state[name]

    # -- stage 2

    def remeasure(self):
        """Names the oracle: the best of the five, or the unchanged script where none is better.

        A cycle in which others used the machine is made up for by another one, as far as the limit goes.

        Raises:
            SystemExit: Too few cycles were undisturbed, or none of the five could be measured.
        """
        arms = {"A": self.plain}
        for number, _ in enumerate(self.state["finalists"]):
            arms[f"grid{number}"] = self.tuned(self.best_of(number))
        runs = self.kept("remeasured")
        done = {(run["cycle"], run["arm"]) for run in runs}
        wanted = self.options.cycles
        most = self.options.most_cycles or 2 * wanted
        missing = [(n, arm) for n in range(most) for arm in arms if (n, arm) not in done]
        if missing and len(undisturbed(runs, arms)) < wanted:
            self.prime({arm: command for arm, command in arms.items() if arm != "A"})
        cycle = 0
        while cycle < most and len(undisturbed(runs, arms)) < wanted:
            for arm in turned(list(arms), cycle):
                if (cycle, arm) not in done:
                    self.measure(runs, cycle, arm, arms[arm])
            cycle += 1
        spoilt = self.state["remeasured_disturbed"] = disturbed(runs)
        if len(undisturbed(runs, arms)) < wanted:
            self.state["verdict"] = "unresolved"
            self.save()
            raise SystemExit(
                f"no oracle is named: others used the machine in {len(spoilt)} of {cycle} cycles "
                f"of the five, and {wanted} without them are wanted; --most-cycles allows more"
            )
        gains = {arm: interval(ratios(runs, arm, "A", self.cost)) for arm in arms if arm != "A"}
        gains = {arm: gain for arm, gain in gains.items() if gain is not None}
        if not gains:
            raise SystemExit("none of the five could be measured again")
        arm = max(gains, key=lambda name: gains[name]["value"])
        better = gains[arm]["value"] > 1.0
        entry = self.state["finalists"][int(arm.removeprefix("grid"))]
        named = {
            "arm": arm if better else "A",
            "config": entry["config"] if better else {},
            "gain": gains[arm],
        }
        if self.state.get("oracle", named)["arm"] != named["arm"]:
            # Pairs belong to the oracle that they measured.
            self.state.pop("pairs", None)
        self.state |= {"gains": gains, "oracle": named}
        self.save()

    def cost(self, run):
        return run_s(run, self.samples)

    # -- stage 3

    def search(self):
        """A real search, once; its answer stays in `work/`, since it names places of this machine."""
        best = self.work / "best.yaml"
        if "search" not in self.state or not best.exists():
            # Pairs belong to the answer that they measured.
            self.state.pop("pairs", None)
            best.unlink(missing_ok=True)
            began = time.monotonic()
            words = ["search", "--budget", self.options.budget, "--driver", self.options.driver]
            words += ["--python", sys.executable, "--out", str(best), "--script", str(self.script)]
            words += ["--", *self.table.header.workload.args] if self.table.header.workload.args else []
            code = searching.run_autotune(words, cwd=self.work, stdout=sys.stderr)
            searching.check_answer(code, best)
            commit, dirty = searching.commit()
            document = yaml.safe_load(best.read_text())
            pick = document["picks"]["best"]
            self.state["search"] = {
                "exit": code,
                "commit": commit,
                "dirty": dirty,
                "best_sha256": hashlib.sha256(best.read_bytes()).hexdigest(),
                "seconds": round(time.monotonic() - began, 1),
                "budget": self.options.budget,
                "driver": self.options.driver,
                "trials": document.get("provenance", {}).get("trials"),
                "changed": {change["knob"]: change["value"] for change in pick["changes"]},
                "claim": pick["speedup"],
            }
            self.save()
        elif hashlib.sha256(best.read_bytes()).hexdigest() != self.state["search"]["best_sha256"]:
            raise SystemExit(
                f"work/ holds another search's answer than {self.result.name}; --fresh begins anew"
            )
        return best

    # -- stage 4

    def compare(self):
        """Search against oracle, with the oracle twice, until it is settled or the cap is reached."""
        arm, exit_code = self.state["oracle"]["arm"], self.state["search"]["exit"]
        best = self.plain if arm == "A" else self.tuned(self.best_of(int(arm.removeprefix("grid"))))
        found = self.tuned(self.work / "best.yaml") if exit_code == 0 else self.plain
        commands = {"oracle": best, "again": best, "search": found}
        runs = self.kept("pairs")
        done = {(run["cycle"], run["arm"]) for run in runs}
        if not self.is_settled():
            changed = {"oracle": best, "search": found}
            self.prime({arm: command for arm, command in changed.items() if command != self.plain})
        cycle = 0
        while cycle < self.options.most_pairs and not self.is_settled():
            for name in FINAL_ORDERS[cycle % len(FINAL_ORDERS)]:
                if (cycle, name) not in done:
                    self.measure(runs, cycle, name, commands[name])
            cycle += 1
        self.judge()

    def is_proved(self):
        """An earlier sitting came to its verdict: for that its answer need not lie in `work/` any more."""
        return "search" in self.state and bool(self.kept("pairs")) and self.is_settled()

    def is_settled(self):
        """There is a verdict."""
        return self.judge() != "unresolved"

    def judge(self):
        """Adds ratios, intervals and verdict to the state."""
        state, runs = self.state, self.state["pairs"]
        state["disturbed"] = disturbed(runs)
        state["ratios"] = ratios(runs, "search", "oracle", self.cost)
        state["ratio"] = interval(state["ratios"])
        state["identical_ratios"] = ratios(runs, "again", "oracle", self.cost)
        state["identical"] = interval(state["identical_ratios"])
        state["steady"] = interval(ratios(runs, "search", "oracle", lambda run: 1.0 / run["samples_per_s"]))
        width = half_width(state["ratio"])
        state["half_width"] = width if math.isfinite(width) else None
        enough = len(state["ratios"]) >= self.options.pairs
        state["verdict"] = verdict(state["ratio"], state["identical"]) if enough else "unresolved"
        state["same_config"] = state["search"]["changed"] == state["oracle"]["config"]
        state["nothing_to_gain"] = state["verdict"] == "pass" and nothing_to_gain(
            state["search"]["exit"], state["ratio"]
        )
        self.save()
        return state["verdict"]


def as_answer(config):
    """The least that best.yaml is made of, for a configuration that no search has claimed."""
    one = Estimate(value=1.0, low=1.0, high=1.0, n=0, unit="ratio")
    rate = Estimate(value=0.0, low=0.0, high=0.0, n=0, unit="samples/s")
    loss = LossVerdict(level=0, verdict="unclear", reason="Recorded, not judged.")

    def pick(name, wanted):
        return Recommendation(
            pick=name,
            config=wanted,
            trial=0,
            effect=Effect.NUMERIC if wanted else Effect.EXACT,
            speedup=one,
            throughput=rate,
            peak_bytes=None,
            loss=loss,
        )

    return Answer(
        is_better=bool(config),
        outcome=SearchOutcome.FASTER if config else SearchOutcome.NOTHING_FASTER,
        baseline_throughput=rate,
        baseline_peak_bytes=None,
        safe=pick("safe", Config()),
        best=pick("best", config),
        fastest=None,
        identical=None,
        front=(),
        failures={},
        sentence="A configuration of a recorded grid.",
    )


def script_of(name):
    """A workload's script; those for a CUDA device have a folder of their own."""
    own = FOR_CUDA / f"{name}.py"
    return own if own.is_file() else WORKLOADS / f"{name}.py"


def least_configs(name):
    """So many configurations make a grid of which there can be a best."""
    return LEAST_ON_DEVICE if script_of(name).parent == FOR_CUDA else LEAST_CONFIGS


def check_table(table, path):
    """Refuse a grid that is not whole, too small, changed since it was committed, or of other surroundings.

    What is fastest on one machine need not be so on the next: grid, search and stopwatch belong on one.

    Raises:
        SystemExit: What is wrong with it.
    """
    least = least_configs(table.header.workload.name)
    measured = len({row.config for row in table.rows if row.is_ok})
    failed = {row.config for row in table.rows if not row.is_ok}
    missing = [
        config for config in table.header.configs if not any(row.config == config for row in table.rows)
    ]
    if missing or measured < least:
        raise SystemExit(
            f"{path.name}: {measured} configurations measured, {len(failed)} failed, "
            f"{len(missing)} not recorded; "
            f"an oracle is the best of a whole grid of at least {least}"
        )
    if not searching.is_committed(path):
        raise SystemExit(f"{path.name} is not committed as it is: the grid comes before the search")
    here = device_name(host_facts())
    if table.header.device != here:
        raise SystemExit(
            f"{path.name} was recorded on {table.header.device}, this is {here}: "
            f"record it here first (record.py {table.header.workload.name})"
        )
    for name, value in table.header.environment.items():
        if os.environ.get(name) != value:
            raise SystemExit(f"the grid was recorded with {name}={value}, here it is {os.environ.get(name)}")


def one_table(folder):
    """The only table of a workload; of several, that of this machine."""
    found = sorted(path for path in folder.glob("*.jsonl") if path.suffixes == [".jsonl"])
    own = folder / f"{file_name(host_facts())}.jsonl"
    if own in found:
        return own
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(f"which table of {folder.name}? There are: {names}; say --table")
    return found[0]


def sentence(state):
    """The result for people."""
    ratio, same = state["ratio"], state["identical"]
    if ratio is None:
        return "no whole pair yet"
    extra = " (nothing to gain, and nothing claimed)" if state["nothing_to_gain"] else ""
    return (
        f"{state['verdict']}{extra}: the search's answer is {shown(ratio)} of the oracle, {ratio['n']} pairs "
        f"(half-width {100 * half_width(ratio):.1f} %; {shown(state['steady'])} of its rate alone), "
        f"the oracle against itself {shown(same)}; "
        f"the oracle is {shown(state['oracle']['gain'])} times the script as it is"
    )


def shown(ratio):
    """A ratio with its interval."""
    if ratio is None:
        return "not measured"
    if ratio["low"] is None:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def recorded():
    """Workloads with a committed table of this machine."""
    tables = GRIDS.glob(f"*/{file_name(host_facts())}.jsonl")
    return sorted(path.parent.name for path in tables if searching.is_committed(path))


def proved(name, options):
    """One workload from its grid to a verdict, printed in a line; exit code. What stops it stops no other."""
    try:
        experiment = Experiment(name, options)
        experiment.rank()
        experiment.remeasure()
        if not experiment.is_proved():
            experiment.search()
            experiment.compare()
    except (SystemExit, AutotuneError) as stopped:
        print(f"{name}: {stopped}", file=sys.stderr, flush=True)
        return 1
    print(f"{name}: {sentence(experiment.state)}", flush=True)
    return 0 if experiment.state["verdict"] == "pass" else 1


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="one after the other; all that have a committed grid of this machine where none is named",
    )
    parser.add_argument("--budget", default="10m", help="of the search")
    parser.add_argument("--driver", choices=["ray", "inline"], default="ray")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="undisturbed ones of the five again")
    parser.add_argument("--most-cycles", type=int, help="of the five again, at most; twice --cycles else")
    parser.add_argument("--pairs", type=int, default=10, help="search against oracle, at least")
    parser.add_argument("--most-pairs", type=int, default=24, help="at most")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=10.0, help="seconds measured")
    parser.add_argument("--table", type=Path, help="recorded grid of one workload, where there are several")
    parser.add_argument("--result", type=Path, help="another result file of one workload")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    options = parser.parse_args(words)
    searching.check_tree()
    searching.end_on_signals()
    names = options.workloads or recorded()
    if not names:
        raise SystemExit("no workload has a committed grid of this machine; record.py makes one")
    if len(names) > 1 and (options.table or options.result):
        raise SystemExit("--table and --result are of one workload; name it")
    return max([proved(name, options) for name in names])


if __name__ == "__main__":
    raise SystemExit(main())
