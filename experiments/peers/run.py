"""Let each tool tune the same two scripts, then time every answer side by side.

    python run.py                                     # everything that has no result yet
    python run.py --scripts input_cnn --tools autotune,loadtune --budget 10m
    python run.py --only-report                       # the tables again, from what is there

First each tool by itself, one after the other; then the stopwatch of `experiments/e2e_speedup` times every
distinct answer, the unchanged script twice, and what somebody who knows the script would choose, in cycles
whose order turns. Answers and runs that are there are kept, so that it goes on where it stopped;
`results/<script>.json` has everything, `results/peers.md` the tables.
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for neighbour in ("e2e_speedup", "third_party", "grids"):
    sys.path.insert(0, str(HERE.parent / neighbour))

import peer_tools as tools  # noqa: E402 (needs the path set above)
import searching  # noqa: E402 (needs the path set above)
import third_party_envs as envs  # noqa: E402 (needs the path set above)
import timer  # noqa: E402 (needs the path set above)
from grid import scrubbed  # noqa: E402 (needs the path set above)
from oracle import turned  # noqa: E402 (needs the path set above)

RESULTS = HERE / "results"
BY_HAND = {
    "input_cnn": {
        "8 workers": ["--num-workers", "8"],
        "16 workers": ["--num-workers", "16"],
        "16 workers, bf16": ["--num-workers", "16", "--bf16"],
    },
    "char_gpt": {
        "bf16": ["--bf16"],
        "compiled": ["--compile"],
        "bf16, compiled": ["--bf16", "--compile"],
    },
}
"""What somebody who knows the script would try; none of it changes the batch."""
AS_IT_IS, AGAIN = "script", "script again"
SLACK = 1.05
"""A gain stated without an interval holds where it lies this close to the interval that is measured."""
NOTHING = "-"
COLUMNS = (
    "Tool",
    "Written for it",
    "Time",
    "What it hands over",
    "It states",
    "Measured",
    "Of the best by hand",
    "Statement holds",
)


def requested(state, name, options, bench):
    """Ask every tool that has not answered, and keep what it reported."""
    for tool in options.tools:
        if tool in state["answers"]:
            continue
        ask, edits = tools.TOOLS[tool]
        print(f"{name}: {tool} ...", file=sys.stderr, flush=True)
        before = timer.load()
        try:
            answer = ask(bench, name)
        except RuntimeError as why:
            answer = {"flags": [], "says": str(why), "failed": True}
        beside = timer.neighbours(before, timer.load())
        if answer.get("failed"):
            print(f"{name}: {tool} failed, and is asked again next time: {answer['says']}", file=sys.stderr)
            continue
        commit, dirty = searching.commit()
        made = {"edits": edits, **beside, "date": today(), "commit": commit, "dirty": dirty}
        state["answers"][tool] = {**answer, **made}
        keep(state, name)


def today():
    return datetime.date.today().isoformat()


def keep(state, name):
    """Write the state; studies stay where they are named, everything else without folders."""
    kept = {**state, "answers": {tool: dict(a) for tool, a in state["answers"].items()}}
    applied = {tool: a.pop("apply") for tool, a in kept["answers"].items() if "apply" in a}
    kept = scrubbed(kept, platform.node())
    for tool, path in applied.items():
        kept["answers"][tool]["apply"] = os.path.relpath(path, HERE)
    timer.write(RESULTS / f"{name}.json", kept)


def arms_of(state, name):
    """Arm -> command, every distinct answer once; {tool: arm}."""
    plain = [sys.executable, str(tools.SCRIPTS / f"{name}.py")]
    arms = {AS_IT_IS: plain, AGAIN: plain}
    arms |= {label: [*plain, *flags] for label, flags in BY_HAND[name].items()}
    known = {tuple(command): arm for arm, command in arms.items() if arm != AGAIN}
    of_tool = {}
    for tool, answer in state["answers"].items():
        command = [*plain, *answer.get("flags", [])]
        if "apply" in answer:
            best = str((HERE / answer["apply"]).resolve())
            command = [sys.executable, "-m", "autotune", "apply", best, "--", *plain]
        of_tool[tool] = known.setdefault(tuple(command), tool)
        arms.setdefault(of_tool[tool], command)
    return arms, of_tool


def timed(state, name, options):
    """All runs of all cycles that are missing."""
    arms, _ = arms_of(state, name)
    commands = scrubbed({arm: command[1:] for arm, command in arms.items()}, platform.node())
    if state.get("arms") != commands:
        # Another set of arms is another comparison: cycles of both cannot be mixed.
        state |= {"arms": commands, "runs": []}
    home = tools.SCRIPTS.parent / "work" / name / "home"
    os.environ["AUTOTUNE_HOME"] = str(home)
    done = {(run["cycle"], run["arm"]) for run in state["runs"]}
    for cycle in range(options.cycles):
        for arm in turned(list(arms), cycle):
            if (cycle, arm) in done:
                continue
            figures = timer.run_or_failed(
                arms[arm], warm_s=options.warm, window_s=options.window, limit_s=options.limit
            )
            state["runs"].append({"cycle": cycle, "arm": arm, **figures})
            print(f"{name} {cycle} {arm}: {timer.reported(figures)}", file=sys.stderr, flush=True)
            keep(state, name)


def ratios(runs):
    """Arm -> how many times the script's rate, with a 95 % t interval over whole cycles.

    What failed in any cycle has no rate.
    """
    dead, cycles = {run["arm"] for run in runs if "failed" in run}, {}
    for run in runs:
        if run["arm"] not in dead:
            cycles.setdefault(run["cycle"], {})[run["arm"]] = run["samples_per_s"]
    names = {run["arm"] for run in runs} - dead
    if AS_IT_IS not in names:
        return {}
    whole = [rates for _, rates in sorted(cycles.items()) if rates.keys() == names]
    if not whole:
        return {}
    return {
        arm: timer.interval([math.log(rates[arm] / rates[AS_IT_IS]) for rates in whole])
        for arm in sorted(names - {AS_IT_IS})
    }


def holds(claim, measured):
    """Whether a stated gain agrees with what was measured afterwards; None where none was stated.

    With an interval: the two intervals overlap. Without: it lies within 5 % of the measured interval.
    """
    if claim is None or measured is None or measured["low"] is None:
        return None
    low, high = claim.get("low"), claim.get("high")
    if low is None or high is None:
        low, high = claim["value"] / SLACK, claim["value"] * SLACK
    return low <= measured["high"] and measured["low"] <= high


def table(state, name):
    """What every tool found, as lines of Markdown."""
    measured = ratios(state["runs"])
    measured[AS_IT_IS] = {"value": 1.0, "low": 1.0, "high": 1.0, "n": 0}
    _, of_tool = arms_of(state, name)
    by_hand = {arm: measured[arm] for arm in BY_HAND[name] if arm in measured}
    best = max((m["value"] for m in by_hand.values()), default=1.0)
    lines = [
        f"## {name}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    for tool, answer in state["answers"].items():
        arm = of_tool[tool]
        value = measured.get(arm)
        rate = value["value"] if value else None
        verdict = {None: NOTHING, True: "yes", False: "**no**"}[holds(answer.get("claim"), value)]
        handed = answer["says"] if "apply" in answer else " ".join(answer["flags"]) or "the script as it is"
        handed += ", **trains differently**" if answer.get("changes_training") else ""
        handed += f" (not carried out: {answer['left_out']})" if answer.get("left_out") else ""
        spent = f"{answer['seconds']:.0f} s" if "seconds" in answer else NOTHING
        cells = [f"{tool} {answer.get('version', '')}", answer["edits"], spent, handed]
        cells += [shown(answer.get("claim")), "1" if arm == AS_IT_IS else shown(value)]
        cells += [NOTHING if rate is None else f"{rate / best:.2f}", verdict]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"By hand: {'; '.join(f'{arm} {shown(m)}' for arm, m in by_hand.items())}."]
    lines += [f"The script against itself: {shown(measured.get(AGAIN))}."]
    return lines


def shown(figure):
    if figure is None:
        return NOTHING
    if figure.get("low") is None:
        return f"{figure['value']:.2f}"
    return f"{figure['value']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"


def report():
    """The tables of every script that has results."""
    lines = []
    for name in BY_HAND:
        path = RESULTS / f"{name}.json"
        if path.exists():
            state = json.loads(path.read_text())
            where = state.get("machine", {})
            lines += [*table(state, name), ""]
            dates = sorted(answer["date"] for answer in state["answers"].values())
            lines += [f"{where.get('cores')} cores, {where.get('cpu')}, {dates[0]} to {dates[-1]}.", ""]
    text = "\n".join(lines)
    (RESULTS / "peers.md").write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", default=",".join(BY_HAND))
    parser.add_argument("--tools", default=",".join(tools.TOOLS))
    parser.add_argument("--budget", default="10m", help="of our search")
    parser.add_argument("--threads", default="1", help="OMP_NUM_THREADS for every tool and every run")
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--warm", type=float, default=4.0, help="seconds skipped after the first step")
    parser.add_argument("--window", type=float, default=12.0, help="seconds measured")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one run may take")
    parser.add_argument(
        "--work", default="~/.cache/autotune-peers", help="environments and folders of the peers"
    )
    parser.add_argument("--only-report", action="store_true")
    options = parser.parse_args()
    names = options.scripts.split(",")
    options.tools = [tool.strip() for tool in options.tools.split(",")]
    for given, known in ((names, BY_HAND), (options.tools, tools.TOOLS)):
        wrong = [word for word in given if word not in known]
        if wrong:
            parser.error(f"{wrong[0]!r} is not known; there are: {', '.join(known)}")
    if not options.only_report:
        searching.check_tree()
        searching.end_on_signals()
        os.environ["OMP_NUM_THREADS"] = options.threads
        bench = tools.Bench(rooms=envs.Rooms(options.work), folder=HERE / "work", budget=options.budget)
        for name in names:
            path, script = RESULTS / f"{name}.json", tools.SCRIPTS / f"{name}.py"
            identity = {
                "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
                "threads": options.threads,
                "budget": options.budget,
                "warm_s": options.warm,
                "window_s": options.window,
                "machine": timer.machine(),
            }
            state = {"script": name, **identity, "answers": {}, "runs": []}
            if path.exists():
                state = json.loads(path.read_text())
                timer.check_identity(state, identity, path)
            requested(state, name, options, bench)
            timed(state, name, options)
    print(report())


if __name__ == "__main__":
    main()
