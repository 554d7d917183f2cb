"""What replayed searches show: tables in Markdown, curves as a drawing.

    python analyse.py results/synthetic.jsonl [--plot results/synthetic.svg] > results/synthetic.md

A search that never arrives counts as one that took its whole budget, and the share of those is beside every
ratio. Intervals are of 95 %, by a bootstrap over workloads first, seeds within them.
"""

import argparse
import json
import math
import random
import statistics
import sys
from pathlib import Path

import score

OURS = "staged"
DRAWS = 2000
GRID = 60
BAR_RATIO, BAR_FAILURES = 3.0, 3
FROZEN = Path(__file__).resolve().parent / "frozen.json"
RULES = ("by_model", "by_reading")


def read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    if len({line["set"] for line in lines}) > 1:
        sys.exit(f"{path.name} mixes sets of tables")
    return lines


def complete(lines):
    """Lines of those (table, seed) that every sampler has: a run that was stopped is not balanced."""
    samplers, cells = {x["sampler"] for x in lines}, {}
    for line in lines:
        cells.setdefault(_pair(line), set()).add(line["sampler"])
    return [x for x in lines if cells[_pair(x)] == samplers]


def workload(line):
    """What counts as one workload: all devices of a recorded one, one made-up world."""
    return line["table"] if line["set"] == "synthetic" else line["table"].split("/")[0]


def frozen_part(lines, path=FROZEN):
    """(lines of the frozen run, how many of its searches are missing); nothing and None without one."""
    if not path.is_file():
        return [], None
    frozen = json.loads(path.read_text())
    wanted = {
        (entry["sha256"], sampler, seed)
        for entry in frozen["held_out"].values()
        for sampler in frozen["samplers"]
        for seed in range(frozen["seeds"])
    }
    same = ("code", "budget_s", "workers")
    found = {
        key: line
        for line in lines
        if (key := (line["table_sha256"], line["sampler"], line["seed"])) in wanted
        and all(line[name] == frozen[name] for name in same)
    }
    return list(found.values()), len(wanted) - len(found)


def arrival(line, percent, rule):
    """Trial-seconds until the recommendation stays that close; all it spent may be, where it never does.

    By the rule ``sooner`` it is the one of both rules that arrives first.
    """
    if rule == "sooner":
        return min(arrival(line, percent, other) for other in RULES)
    found = line["within"][rule][str(percent)]
    return line["budget_s"] * line["workers"] if found is None else max(found[1], 1.0)


def paired(lines, other, percent, rule, theirs=""):
    """Workload -> ln ratios of the other sampler's arrival to ours, seed by seed of each table.

    The other one's is by another rule where `theirs` names one.
    """
    ours = {_pair(x): arrival(x, percent, rule) for x in lines if x["sampler"] == OURS}
    found = {}
    for line in lines:
        if line["sampler"] == other and _pair(line) in ours:
            ratio = math.log(arrival(line, percent, theirs or rule) / ours[_pair(line)])
            found.setdefault(workload(line), []).append(ratio)
    return found


def _pair(line):
    return line["table"], line["seed"], line["workers"], line["budget_s"], line["code"]


def interval(groups, seed=0):
    """(mean, low, high) of workload means, as factors; None without a pair."""
    if not groups:
        return None
    names, draw = sorted(groups), random.Random(seed)
    middle = statistics.fmean(statistics.fmean(groups[n]) for n in names)
    means = sorted(
        statistics.fmean(
            statistics.fmean(draw.choices(groups[n], k=len(groups[n])))
            for n in draw.choices(names, k=len(names))
        )
        for _ in range(DRAWS)
    )
    low, high = means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]
    return tuple(math.exp(x) for x in (middle, low, high))


def verdict(lines):
    """(met, sentence) of the bar that was set beforehand, against the best of the rivals in these lines.

    Ours is judged by what it would confirm, a rival by that or by its fastest reading, whichever arrives
    sooner in a search: our way to a shortlist, with its ties, is no part of a rival and must not hold it up.
    The planner with parts left out is no rival.
    """
    rivals = sorted(s for s in {line["sampler"] for line in lines} if s.split()[0] != OURS)
    ratios = {r: interval(paired(lines, r, 2, "by_model", "sooner")) for r in rivals}
    known = {r: ratio for r, ratio in ratios.items() if ratio is not None}
    if not known:
        return False, "There is nothing to compare with."
    best = min(known, key=lambda r: known[r][0])
    value, low, high = known[best]
    failed = statistics.median(_failed(x) for x in lines if x["sampler"] == OURS)
    met = value >= BAR_RATIO and low > 1 and failed <= BAR_FAILURES
    return met, (
        f"Against the best of them, {best}: {value:.2f} [{low:.2f}, {high:.2f}] times fewer trial-seconds to "
        "within 2 %, taken by the sooner of its two rules; "
        f"{failed:g} failures a search in the median. The bar ({BAR_RATIO:g} times with an interval above 1, "
        f"at most {BAR_FAILURES} failures) is {'met' if met else 'not met'}."
    )


def _failed(line):
    return sum(line["failures"].values())


def _median(values):
    return statistics.median(values) if values else math.nan


def by_sampler(lines, rule):
    """One row per sampler."""
    rows = []
    for sampler in sorted({x["sampler"] for x in lines}, key=lambda s: (s != OURS, s)):
        mine = [x for x in lines if x["sampler"] == sampler]
        row = [sampler, len(mine)]
        for percent in score.WITHIN:
            times = [arrival(x, percent, rule) for x in mine]
            share = statistics.fmean(x["within"][rule][str(percent)] is not None for x in mine)
            row.append(f"{_median(times):.0f} s ({share:.0%})")
        column = 2 if rule == "by_model" else 3
        row += [f"{_regret(mine, part, column):.3f}" for part in (0.1, 0.3, 1.0)]
        row.append(f"{_median([_failed(x) for x in mine]):g} (most {max(_failed(x) for x in mine)})")
        row.append(f"{_median([x['trial_s'] for x in mine]):.0f} s")
        claims = [x["answer"] for x in mine if x["answer"].get("is_better")]
        row.append(f"{sum(a['false_win'] for a in claims)} of {len(claims)}")
        row.append(f"{sum(bool(a['covered']) for a in claims)} of {len(claims)}")
        rows.append(row)
    return rows


def _regret(lines, part, column):
    return statistics.fmean(
        score.regret_at(x["curve"], part * x["budget_s"] * x["workers"], column) for x in lines
    )


def ratio_rows(lines, rule):
    rows = []
    for rival in sorted({x["sampler"] for x in lines} - {OURS}):
        row = [rival]
        for percent in score.WITHIN:
            found = interval(paired(lines, rival, percent, rule))
            row.append("-" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]")
        pairs = [x for group in paired(lines, rival, 2, rule).values() for x in group]
        row.append(f"{statistics.fmean(x < 0 for x in pairs):.0%}" if pairs else "-")
        rows.append(row)
    return rows


def workload_rows(lines, rule):
    samplers = sorted({x["sampler"] for x in lines}, key=lambda s: (s != OURS, s))
    rows = []
    for name in sorted({workload(x) for x in lines}):
        row = [name]
        for sampler in samplers:
            mine = [x for x in lines if workload(x) == name and x["sampler"] == sampler]
            if not mine:
                row.append("-")
                continue
            reached = sum(x["within"][rule]["2"] is not None for x in mine)
            end = statistics.fmean(1 - x["curve"][-1][2] for x in mine if x["curve"])
            times = _median([arrival(x, 2, rule) for x in mine])
            row.append(f"{times:.0f} s, {reached}/{len(mine)}, {end:.3f}")
        rows.append(row)
    return ["workload", *samplers], rows


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def held_out_verdict(lines, path=FROZEN):
    """The verdict on the frozen run, or why there is none."""
    mine, missing = frozen_part(lines, path)
    if missing is None:
        return "No verdict: nothing is frozen."
    if missing:
        return f"No verdict: {missing} of {missing + len(mine)} searches of the frozen run are missing."
    return verdict(mine)[1]


def report(every, frozen=FROZEN):
    lines = complete(every)
    left_out = len(every) - len(lines)
    kind = lines[0]["set"]
    what = "made-up tables, which prove nothing about training" if kind == "synthetic" else f"{kind} tables"
    seeds, tables = {x["seed"] for x in lines}, {x["table"] for x in lines}
    budgets = ", ".join(f"{x:g} s" for x in sorted({x["budget_s"] for x in lines}))
    first = f"{len(lines)} searches on {len(tables)} {what}; seeds: {len(seeds)}; budget: {budgets}."
    parts = [first + (f" Left out, as not every sampler has that seed yet: {left_out}." if left_out else "")]
    if kind == "held-out":
        parts.append(held_out_verdict(every, frozen))
    else:
        parts.append(f"{verdict(lines)[1]} Here that settles nothing: it is for held-out tables.")
    for rule, title in (
        ("by_model", "Recommended by the search's own rule, for every sampler alike"),
        ("by_reading", "Recommended by the fastest reading, for every sampler alike"),
    ):
        head = [
            "sampler", "searches", "to 5 %", "to 2 %", "to 1 %", "regret at 10 %", "at 30 %", "at 100 %",
            "failures", "ends after", "false wins", "intervals that hold",
        ]  # fmt: skip
        parts += [f"## {title}", table(head, by_sampler(lines, rule))]
        parts.append("Trial-seconds of a sampler over ours, geometric mean; above 1 ours is sooner.")
        head = ["against", "to 5 %", "to 2 %", "to 1 %", "ours later (2 %)"]
        parts.append(table(head, ratio_rows(lines, rule)))
    parts.append("## By workload: median trial-seconds to 2 %, how many got there, mean regret of the answer")
    parts.append(table(*workload_rows(lines, "by_model")))
    return "\n\n".join(parts) + "\n"


def plot(lines, path):
    """Mean simple regret over trial-seconds, one line per sampler."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "search_replay"
    whole = max(x["budget_s"] * x["workers"] for x in lines)
    times = [whole * 10 ** (-2 + 2 * k / GRID) for k in range(GRID + 1)]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for sampler in sorted({x["sampler"] for x in lines}, key=lambda s: (s != OURS, s)):
        mine = [x for x in lines if x["sampler"] == sampler]
        means = [statistics.fmean(score.regret_at(x["curve"], t) for x in mine) for t in times]
        axes.plot(times, means, label=sampler, linewidth=2.5 if sampler == OURS else 1.2)
    axes.set(
        xscale="log",
        xlabel="trial-seconds",
        ylabel="regret of what is recommended",
        ylim=(0, None),
        title=f"{lines[0]['set']} tables",
    )
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    lines = read(options.file)
    if not lines:
        sys.exit(f"{options.file.name} holds no search")
    if options.plot:
        plot(complete(lines), options.plot)
    print(report(lines), end="")


if __name__ == "__main__":
    main()
