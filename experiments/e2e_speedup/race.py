"""Which search is there sooner, for real? Ours beside another sampler, from the same start, on the clock.

    python race.py                                            # what is missing of everything; hours
    python race.py photos_denoise vision_digits --samplers staged,tpe --repeats 3 --budget 10m
    python race.py --only-report

Three stages, each taken up where it stopped: every search from nothing, samplers in turning order; every
configuration that one of them would ever have recommended again, beside the script, in interleaved fresh
processes by the stopwatch; when each search's recommendation came, and stayed, within 5 and 2 per cent of the
fastest of them all. `results/<workload>.race.json` has everything, `results/race.md` the tables.
"""

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import oracle
import searching
import timer

from autotune.cli.open_study import open_study
from autotune.compare.amortised_rate import own_batch, planned_steps
from autotune.driver.result import changes_of
from autotune.export.best_config import write_best
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import Stage

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "search_replay"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grids"))

from grid import duration_s
from score import RULES, Truth, reached, read_fastest, recommended

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
RESULTS = HERE / "results"
NAMES = ("photos_denoise", "vision_digits")
SAMPLERS = ("staged", "tpe")
MEASURES = {
    "training": "training alone, compile caches filled",
    "planned": "over the planned run, each compile paid once",
}
"""What counts as fast -> in words. Searches go by the second; the first was registered before any was run."""
WITHIN = (5, 2)
"""Per cent below the fastest that count as having arrived."""
SCRIPT = "script"
SCREENING = (Stage.INITIAL, Stage.REFINE)
COLUMNS = (
    "Sampler",
    "Seed",
    "Within 5 %, by model / by readings",
    "Within 2 %",
    "Answer, of the fastest",
    "Trials",
    "Failures",
)


# Stage 1: the searches -------------------------------------------------------------------------


def search(name, sampler, seed, options, folder):
    """One search from nothing; how it ended, and what it would have recommended when."""
    home = folder / f"{sampler}-{seed}"
    # A search that was cut off begins anew: what is compared is the time from nothing.
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    words = ["search", "--budget", options.budget, "--driver", options.driver, "--python", sys.executable]
    words += ["--sampler", sampler, "--seed", str(seed), "--out", str(home / "best.yaml")]
    if sampler != SAMPLERS[0]:
        # The others as they are elsewhere: a fresh process for every configuration.
        words += ["--start", "cold"]
    before = timer.load()
    code = searching.run_autotune(
        [*words, "--script", str(WORKLOADS / f"{name}.py")], cwd=home, home=home / "home", stdout=sys.stderr
    )
    if code not in (0, 1):
        raise SystemExit(f"{name}, {sampler}, seed {seed}: the search ended with exit code {code}")
    searching.check_answer(code, home / "best.yaml")
    study, answer = opened(home)
    commit, dirty = searching.commit()
    return {
        "sampler": sampler,
        "seed": seed,
        "exit": code,
        "seconds": round(study.elapsed_s, 1),
        "trials": len(study.trials),
        "failures": sum(trial.failure is not None for trial in study.trials),
        "answer": dict(answer.best.config) if answer is not None and answer.is_better else {},
        "said": "" if answer is None else answer.sentence,
        "changing": changing(study),
        "course": course(study, answer),
        "beside": timer.neighbours(before, timer.load())["pressure_frac"],
        "commit": commit,
        "dirty": dirty,
        "date": datetime.date.today().isoformat(),
    }


def opened(home):
    """(study, answer) of the only search below that folder."""
    (path,) = (home / "home" / "studies").iterdir()
    found = open_study(path)
    return found.study, found.answer


def changing(study):
    """What went to configs that change the training: {stage: [runs, seconds, of them such runs, seconds]}."""
    found = {}
    for name, stages in {"screening": SCREENING, "confirmation": (Stage.CONFIRM,)}.items():
        runs = study.finished(*stages)
        such = [t for t in runs if study.space and study.space.effect(t.config) is Effect.TRAINING]
        found[name] = [
            x for part in (runs, such) for x in (len(part), round(sum(t.seconds for t in part), 1))
        ]
    return found


def course(study, answer):
    """What would have been recommended after each trial: [[seconds, {by_model, by_reading}]].

    By the two rules of the replay: what the search would confirm (once confirmed, the winner; at the end the
    answer itself, which may be the unchanged script), and what has read fastest. As there, neither names what
    changes the training.
    """
    reported = sorted(study.finished(*Stage), key=lambda trial: trial.finished_s)
    points = []
    for k, trial in enumerate(reported):
        until = sorted(reported[: k + 1], key=lambda t: t.number)
        seen = replace(study, trials=tuple(until), elapsed_s=trial.finished_s)
        if study.space is None or len(seen.baseline) == 0:
            continue
        point = {"by_model": dict(recommended(seen)), "by_reading": dict(read_fastest(seen))}
        if not points or points[-1][1] != point:
            points.append([round(trial.finished_s, 1), point])
    last = dict(answer.best.config) if answer is not None and answer.is_better else {}
    points.append([round(study.elapsed_s, 1), {"by_model": last, "by_reading": dict(read_fastest(study))}])
    return points


def refresh(state, folder):
    """Tell anew what was recommended when, of searches that are at hand: all by the rules of now.

    And what they know of the planned run: its samples, and how many seconds each arm compiles where nothing
    is cached, the mean of all such runs. Of searches that are not at hand what was reported before stays.
    """
    compiled = {}
    for one in state["searches"]:
        home = folder / f"{one['sampler']}-{one['seed']}"
        if not home.exists():
            continue
        study, answer = opened(home)
        one["said"] = "" if answer is None else answer.sentence
        one["changing"] = changing(study)
        one["course"] = course(study, answer)
        state["planned_samples"] = (planned_steps(study) or 0) * own_batch(study)
        for trial in study.trials:
            if trial.measurement is not None and trial.measurement.cold_compile:
                compiled.setdefault(key(trial.config), []).append(trial.measurement.all_compile_s)
    known = {**state.get("compile_s", {}), **{arm: round(fmean(each), 2) for arm, each in compiled.items()}}
    state["compile_s"] = {arm: known[arm] for arm in recommendations(state) if arm in known}


# Stage 2: the stopwatch ------------------------------------------------------------------------


def key(config):
    """A configuration's name in the results."""
    return json.dumps(dict(sorted(config.items()))) if config else SCRIPT


def config_of(label):
    """The configuration of such a name."""
    return Config({} if label == SCRIPT else json.loads(label))


def recommendations(state):
    """Every configuration that some search would have recommended, in the order of their names."""
    found = {
        key(point[rule]): point[rule] for s in state["searches"] for _, point in s["course"] for rule in RULES
    }
    found.setdefault(SCRIPT, {})
    return dict(sorted(found.items()))


def commands(name, state, folder):
    """How each of them is started."""
    plain = [sys.executable, str(WORKLOADS / f"{name}.py")]
    arms = {SCRIPT: plain}
    for number, (label, config) in enumerate(recommendations(state).items()):
        if label == SCRIPT:
            continue
        path = folder / f"arm{number}.yaml"
        path.unlink(missing_ok=True)
        study = whose(state, config, folder)
        write_best(path, study, oracle.as_answer(Config(config)), changes_of(study))
        arms[label] = [sys.executable, "-m", "autotune", "apply", str(path), "--", *plain]
    return arms


def whose(state, config, folder):
    """A study that has recommended it: it knows how it reaches the script."""
    for one in state["searches"]:
        if any(config in (point[rule] for rule in RULES) for _, point in one["course"]):
            return opened(folder / f"{one['sampler']}-{one['seed']}")[0]
    raise SystemExit(f"no search has recommended {key(config)}")


def timed(name, state, options, folder):
    """All runs of all cycles that are missing."""
    arms = commands(name, state, folder)
    if state.get("arms") != list(arms):
        # Another set of arms is another comparison: cycles of both cannot be mixed.
        state |= {"arms": list(arms), "runs": []}
    os.environ["AUTOTUNE_HOME"] = str(folder / "apply")
    done = {(run["cycle"], run["arm"]) for run in state["runs"]}
    if any((cycle, arm) not in done for cycle in range(options.cycles) for arm in arms):
        primed(arms, options)
    for cycle in range(options.cycles):
        for arm in oracle.turned(list(arms), cycle):
            if (cycle, arm) in done:
                continue
            figures = timer.run_or_failed(
                arms[arm], warm_s=options.warm, window_s=options.window, limit_s=options.limit
            )
            state["runs"].append({"cycle": cycle, "arm": arm, **figures})
            print(f"{name} {cycle} {arm}: {timer.reported(figures)}", file=sys.stderr, flush=True)
            timer.write(RESULTS / f"{name}.race.json", state)


def primed(arms, options):
    """Fill the compile caches beforehand, in each sitting: another compile may fall into a window."""
    for label, command in arms.items():
        if config_of(label).get("compile_mode", "off") != "off":
            timer.run_or_failed(command, warm_s=options.warm, window_s=options.window, limit_s=options.limit)


# Stage 3: who was there when -------------------------------------------------------------------


def rates(state, by="training"):
    """Arm -> how many times the script's rate, geometric mean over undisturbed cycles; `by` of `MEASURES`."""
    cycles = whole_cycles(state, by)
    arms = sorted(cycles[0]) if cycles else []
    return {arm: math.exp(fmean(c[arm] for c in cycles)) for arm in arms}


def fastest_rate(state, by="training"):
    """How many times the script's rate the fastest has, rated by cycles that did not choose it.

    The largest of many noisy means is lucky as well as fast, and what is as fast would count as slower. So
    each cycle in turn rates the arm that all others have for the fastest, as the oracle of a replay is rated.
    """
    cycles = whole_cycles(state, by)
    logs = {config_of(arm): {n: cycle[arm] for n, cycle in enumerate(cycles)} for arm in cycles[0]}
    return Truth.by(logs).oracle_rate


def whole_cycles(state, by="training"):
    """Of each undisturbed cycle: arm -> ln of how many times the script's rate; what ever failed has none."""
    runs = state["runs"]
    spoilt, dead = set(oracle.disturbed(runs)), {run["arm"] for run in runs if "failed" in run}
    cycles = {}
    for run in runs:
        if run["cycle"] not in spoilt and run["arm"] not in dead:
            cycles.setdefault(run["cycle"], {})[run["arm"]] = rate_of(run, state, by)
    names = {run["arm"] for run in runs} - dead
    if SCRIPT not in names:
        return []
    whole = [arms for _, arms in sorted(cycles.items()) if arms.keys() == names]
    return [{arm: math.log(rate / arms[SCRIPT]) for arm, rate in arms.items()} for arms in whole]


def rate_of(run, state, by):
    """Samples per second of a run: of its training alone, or over the planned run, compiled once in it."""
    if by == "training":
        return run["samples_per_s"]
    compile_s = state.get("compile_s", {}).get(run["arm"], 0.0)
    return oracle.planned_rate(run["samples_per_s"], state.get("planned_samples"), compile_s)


def is_timed(state):
    """Whether every configuration that was recommended has had its runs."""
    return {run["arm"] for run in state["runs"]} >= recommendations(state).keys()


def arrivals(one, gains, best):
    """{rule: {per cent: seconds from which on it stayed within that of the fastest, or None}}."""
    points = [
        (at_s, at_s, *(gains.get(key(point[rule]), 0.0) / best for rule in RULES))
        for at_s, point in one["course"]
    ]
    found = {}
    for column, rule in enumerate(RULES, start=2):
        each = {percent: reached(points, percent, column) for percent in WITHIN}
        found[rule] = {percent: None if at is None else at[0] for percent, at in each.items()}
    return found


def arrived_s(one, gains, best, percent, rule, budget_s):
    """Seconds until it arrived by a rule; later than the budget or never counts as the whole budget."""
    found = arrivals(one, gains, best)[rule][percent]
    return budget_s if found is None else min(found, budget_s)


def compared(states, percent, rule, by="training"):
    """Another sampler's seconds over ours by a rule, paired by workload and seed: {sampler: interval}."""
    logs = {}
    for state in states:
        gains, best = rates(state, by), fastest_rate(state, by)
        times = {
            (s["sampler"], s["seed"]): arrived_s(s, gains, best, percent, rule, state["budget_s"])
            for s in state["searches"]
        }
        for (sampler, seed), seconds in times.items():
            if sampler != SAMPLERS[0] and (SAMPLERS[0], seed) in times:
                logs.setdefault(sampler, []).append(math.log(seconds / times[SAMPLERS[0], seed]))
    return {sampler: timer.interval(values) for sampler, values in logs.items()}


def report():
    """The tables, of whatever is there."""
    states = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.race.json"))]
    states = [state for state in states if is_timed(state) and rates(state)]
    lines = ["# Wall-clock seconds until the recommendation stays within 5 % of the fastest", ""]
    for state, (by, what) in itertools.product(states, MEASURES.items()):
        lines += [f"## {state['workload']}, {what}", "", *raced_table(state, by), ""]
    for (by, fast), percent, (rule, what) in itertools.product(MEASURES.items(), WITHIN, RULES.items()):
        for sampler, ratio in compared(states, percent, rule, by).items():
            shown = f"{oracle.shown(ratio)}, {ratio['n']} pairs"
            lines.append(f"- {sampler} over ours to {percent} %, {what}; {fast}: {shown}")
    text = "\n".join(lines) + "\n"
    (RESULTS / "race.md").write_text(text)
    return text


def raced_table(state, by):
    """Of one workload: what there was to reach, and when each search was there."""
    gains, best, where = rates(state, by), fastest_rate(state, by), state["machine"]
    first = max(gains, key=gains.get)
    lines = [
        f"Fastest of {len(gains)} ever recommended: `{first}`, {gains[first]:.2f} times the script.",
        f"To be reached is {best:.2f} times: the fastest, rated by cycles that did not choose it.",
        f"{where['cores']} cores, {where['cpu']}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    for one in sorted(state["searches"], key=lambda s: (s["sampler"], s["seed"])):
        found = arrivals(one, gains, best)
        cells = [one["sampler"], str(one["seed"])]
        cells += [" / ".join(seconds(found[rule][percent]) for rule in RULES) for percent in WITHIN]
        answer = gains.get(key(one["answer"]), 0.0) / best
        cells += [f"{answer:.2f}", str(one["trials"]), str(one["failures"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def seconds(value):
    return "never" if value is None else f"{value:.0f} s"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=list(NAMES), metavar="WORKLOAD")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default="10m", help="of each search")
    parser.add_argument("--driver", choices=["ray", "inline"], default="ray")
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--warm", type=float, default=4.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=10.0, help="seconds measured")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one run may take")
    parser.add_argument("--only-report", action="store_true")
    options = parser.parse_args()
    if not options.only_report:
        searching.check_tree()
        searching.end_on_signals()
        for name in options.workloads:
            raced(name, options)
    print(report())


def raced(name, options):
    """Everything of one workload that is missing."""
    folder = HERE / "work" / f"{name}.race"
    path = RESULTS / f"{name}.race.json"
    script = WORKLOADS / f"{name}.py"
    identity = {
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "budget": options.budget,
        "driver": options.driver,
        "warm_s": options.warm,
        "window_s": options.window,
        "machine": timer.machine(),
    }
    state = {"workload": name, **identity, "searches": [], "runs": []}
    if path.exists():
        state = json.loads(path.read_text())
        timer.check_identity(state, identity, path)
    state["budget_s"] = duration_s(options.budget)
    done = {(s["sampler"], s["seed"]) for s in state["searches"]}
    samplers = options.samplers.split(",")
    for seed in range(options.repeats):
        for sampler in oracle.turned(samplers, seed):
            if (sampler, seed) not in done:
                state["searches"].append(search(name, sampler, seed, options, folder))
                timer.write(path, state)
    refresh(state, folder)
    timer.write(path, state)
    timed(name, state, options, folder)


if __name__ == "__main__":
    main()
