"""What replayed searches show: tables in Markdown, curves as a drawing.

    python analyse.py results/develop.jsonl        # writes results/develop.md and results/develop.svg

A search that never arrives counts as one that took its whole budget, and the share of those is beside every
ratio. Intervals are of 95 %, by a bootstrap over workloads first, seeds within them. `run.py` writes the same
at the end of every call.
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
ALL_MEANS = "staged live forked"
"""The planner with segments of running processes and with forked trials: a search as a whole."""
FORKED = "forked"
"""Last word of a sampler whose screening trials are forked: a rival with that has a means of ours."""
SLOW = ("gp",)
"""Takes so long that it may have fewer seeds: pairs of the others do not wait for it."""
SAME_TRUTH = 1e-3
"""Relative, within which sizes and oracles of one table count as the same."""
DRAWS = 2000
GRID = 60
BAR_RATIO, BAR_FAILURES = 3.0, 3
RATIO_HEAD = ["against", "to 5 %", "to 2 %", "to 1 %", "ours later (2 %)"]
FROZEN = Path(__file__).resolve().parent / "frozen.json"
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Of the budget, at which regret is reported."""
FRONT_SHARES = (0.2, 1.0)
"""The same for the front of rate and memory."""
KINDS = {
    "synthetic": "made-up tables, which prove nothing about training",
    "develop": "recorded tables that may be looked at",
    "ablations": "recorded tables that may be looked at",
    "adverse": "adverse variants of recorded tables",
    "parallel": "recorded tables that may be looked at",
    "transfer": "recorded tables that may be looked at",
}


def read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    if len({line["set"] for line in lines}) > 1:
        sys.exit(f"{path.name} mixes sets of tables")
    reported = two_truths(lines)
    if reported:
        sys.exit(f"{path.name} judges {reported} by two different truths: libraries differ between its lines")
    return lines


def two_truths(lines):
    """Name of a table whose truth is not the same in all lines of one code; empty where there is none.

    Every process fits it anew (`levels.py`), and other processors round otherwise.
    """
    first = {}
    for line in lines:
        reported = {"oracle": line.get("oracle_speedup"), **line.get("noise", {}).get("sizes", {})}
        known = first.setdefault((line.get("code"), line.get("table_sha256"), line["table"]), reported)
        if known.keys() != reported.keys():
            return line["table"]
        if any(
            x is not None and not math.isclose(x, reported[k], rel_tol=SAME_TRUTH) for k, x in known.items()
        ):
            return line["table"]
    return ""


def complete(lines):
    """Lines of those (table, seed) that every sampler has, the slow ones aside: the rest is not balanced."""
    samplers, cells = {x["sampler"] for x in lines} - set(SLOW), {}
    for line in lines:
        cells.setdefault(_pair(line), set()).add(line["sampler"])
    return [x for x in lines if cells[_pair(x)] >= samplers]


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

    By the rule ``sooner`` it is the one of all rules that arrives first.
    """
    if rule == "sooner":
        return min(arrival(line, percent, other) for other in score.RULES)
    found = line["within"][rule][str(percent)]
    return line["budget_s"] * line["workers"] if found is None else max(found[1], 1.0)


def paired(lines, other, percent, rule, theirs="", ours=OURS):
    """Workload -> ln ratios of the other sampler's arrival to ours, seed by seed of each table.

    The other one's is by another rule where `theirs` names one.
    """
    own = {_pair(x): arrival(x, percent, rule) for x in lines if x["sampler"] == ours}
    found = {}
    for line in lines:
        if line["sampler"] == other and _pair(line) in own:
            ratio = math.log(arrival(line, percent, theirs or rule) / own[_pair(line)])
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


def verdict(lines, ours=OURS):
    """(met, sentence) of the bar that was set beforehand, against the best of the rivals in these lines.

    All are judged by what each would confirm, and once more all by what has read fastest for each; the bar
    holds by both rules or not at all. Beside it stand rivals of which, in each search, the rule that arrives
    sooner counts: nobody can know beforehand which that is.
    """
    rivals = _rivals(lines, ours)
    best = {rule: _best(lines, rivals, rule, rule, ours) for rule in score.RULES}
    if None in best.values():
        return False, "There is nothing to compare with."
    failed = statistics.median(_failed(x) for x in lines if x["sampler"] == ours)
    met = failed <= BAR_FAILURES and all(
        value >= BAR_RATIO and low > 1 for (value, low, _), _ in best.values()
    )
    each = ", ".join(f"{score.RULES[rule]} {_reported(found)}" for rule, found in best.items())
    hindsight = _reported(_best(lines, rivals, "by_model", "sooner", ours))
    return met, (
        f"Times fewer trial-seconds to within 2 % than the best of the rivals: {each}; "
        f"{failed:g} failures a search in the median. The bar ({BAR_RATIO:g} times with an interval above 1 "
        f"by both rules, at most {BAR_FAILURES} failures) is {'met' if met else 'not met'}. With rivals by "
        f"the rule that, seen from behind, came sooner in each search: {hindsight}."
    )


def _rivals(lines, ours):
    """Neither the planner without a part nor what has our fork server, nor one that lacks searches yet."""
    wanted = {_pair(x) for x in lines if x["sampler"] == ours}
    pairs = {
        s: {_pair(x) for x in lines if x["sampler"] == s}
        for s in _others(lines)
        if s.split()[0] != OURS and s.split()[-1] != FORKED
    }
    return [s for s, mine in pairs.items() if mine >= wanted] or list(pairs)


def _best(lines, rivals, rule, theirs, ours):
    """(ratio to 2 % with its interval, name) of the rival that comes soonest; None without any."""
    ratios = [(interval(paired(lines, r, 2, rule, theirs, ours)), r) for r in rivals]
    return min((found for found in ratios if found[0] is not None), default=None)


def _reported(found):
    (value, low, high), name = found
    return f"{value:.2f} [{low:.2f}, {high:.2f}] (against {name})"


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
        proved, false, hold = claims(mine)
        rows.append([*row, f"{false} of {proved}", f"{hold} of {proved}"])
    return rows


def claims(lines):
    """(searches that claim a gain, false ones among them, whose interval holds what is true)."""
    made = [x["answer"] for x in lines if x["answer"].get("is_better")]
    return len(made), sum(a["false_win"] for a in made), sum(bool(a["covered"]) for a in made)


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


def _theirs(rival):
    """By which rule a rival is judged; the planner without a part has the planner's own."""
    return "by_model" if rival.split()[0] == OURS else "sooner"


def _others(lines):
    return sorted({x["sampler"] for x in lines} - {OURS})


def threshold_rows(lines, ours=OURS):
    """One row per rival: pairs, ratio with interval and share of searches that arrive, by threshold."""
    rows = []
    for rival in sorted({x["sampler"] for x in lines} - {ours}):
        mine = [x for x in lines if x["sampler"] == rival]
        row = [rival, len(mine)]
        for percent in score.WITHIN:
            found = interval(paired(lines, rival, percent, "by_model", _theirs(rival), ours))
            share = statistics.fmean(_came(x, percent) for x in mine)
            ratio = "-" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"
            row.append(f"{ratio}, {share:.0%}")
        rows.append([*row, *_regrets(mine)])
    own = [x for x in lines if x["sampler"] == ours]
    if own:
        shares = [f"1, {statistics.fmean(_kept(x, p, 'by_model') for x in own):.0%}" for p in score.WITHIN]
        rows.insert(0, [ours, len(own), *shares, *_regrets(own)])
    return rows


THRESHOLD_HEAD = [
    "against", "searches", "to 5 %", "to 2 %", "to 1 %", *(f"regret at {share:.0%}" for share in SHARES),
    *(f"front regret at {share:.0%}" for share in FRONT_SHARES),
]  # fmt: skip


def _came(line, percent):
    """It comes that close, by a rule that it is judged by."""
    rules = score.RULES if _theirs(line["sampler"]) == "sooner" else ("by_model",)
    return any(_kept(line, percent, rule) for rule in rules)


def _kept(line, percent, rule):
    return line["within"][rule][str(percent)] is not None


def _regrets(lines):
    reported = [f"{_regret(lines, share, 2):.3f}" for share in SHARES]
    known = [x for x in lines if x.get("front")]
    for share in FRONT_SHARES:
        each = [score.front_regret_at(x["front"], share * x["budget_s"] * x["workers"]) for x in known]
        reported.append(f"{statistics.fmean(each):.3f}" if each else "-")
    return reported


def table_rows(lines):
    """What each table holds, and how noisy it is."""
    rows = []
    for name in sorted({x["table"] for x in lines}):
        line = next(x for x in lines if x["table"] == name)
        noise = line.get("noise")
        if noise is None:
            continue
        scatter = "-" if noise["own_sd"] is None else f"{noise['own_sd']:.1%} ({noise['own_runs']} runs)"
        near = ", ".join(str(noise["within"][str(percent)]) for percent in score.WITHIN)
        gain = f"{line['oracle_speedup']:.2f}"
        rows.append([workload(line), line["configs"], noise["repeats"], scatter, gain, near])
    return rows


TABLE_HEAD = [
    "table", "feasible", "repeats", "scatter of the script's own processes", "oracle over the script",
    "within 5, 2, 1 % of it",
]  # fmt: skip


def variant_rows(lines):
    """One row per adverse variant and rival, to 5 and to 2 %."""
    rows = []
    for variant in sorted({_variant(x) for x in lines}):
        mine = [x for x in lines if _variant(x) == variant]
        ours = [x for x in mine if x["sampler"] == OURS]
        for rival in _others(mine) if ours else ():
            theirs = [x for x in mine if x["sampler"] == rival]
            row = [variant, rival]
            for percent in (5, 2):
                found = interval(paired(mine, rival, percent, "by_model", _theirs(rival)))
                ratio = "-" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"
                share = statistics.fmean(_came(x, percent) for x in theirs)
                own = statistics.fmean(_kept(x, percent, "by_model") for x in ours)
                row.append(f"{ratio}, {share:.0%} (ours {own:.0%})")
            failed, own = (_median([_failed(x) for x in side]) for side in (theirs, ours))
            row.append(f"{failed:g} (ours {own:g})")
            rows.append(row)
    return rows


def _variant(line):
    return workload(line).partition("+")[2]


def parallel_rows(lines):
    """One row per number of workers and sampler: on the clock, and in trial-seconds."""
    rows = []
    for workers, sampler in sorted({(x["workers"], x["sampler"]) for x in lines}):
        mine = [x for x in lines if (x["workers"], x["sampler"]) == (workers, sampler)]
        rule, row = _theirs(sampler), [workers, sampler, len(mine)]
        for percent in (5, 2):
            share = statistics.fmean(_came(x, percent) for x in mine)
            wall = _median([_on_the_clock(x, percent) for x in mine])
            spent = _median([arrival(x, percent, rule) for x in mine])
            row.append(f"{wall:.0f} s, {spent:.0f} s ({share:.0%})")
        rows.append(row)
    return rows


def _on_the_clock(line, percent):
    """Seconds until it has arrived, whatever ran meanwhile; the budget where it never does."""
    rules = score.RULES if _theirs(line["sampler"]) == "sooner" else ("by_model",)
    found = [line["within"][rule][str(percent)] for rule in rules]
    return min((at[0] for at in found if at is not None), default=line["budget_s"])


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def held_out_verdict(lines, path=FROZEN):
    """(the frozen run is whole, the verdict on it or why there is none)."""
    mine, missing = frozen_part(lines, path)
    if missing is None:
        return False, "No verdict: nothing is frozen."
    if missing:
        every = missing + len(mine)
        return False, f"No verdict: {missing} of {every} searches of the frozen run are missing."
    return True, verdict(mine)[1]


def report(every, frozen=FROZEN):
    lines, kind = complete(every), every[0]["set"]
    if not lines:
        return "No seed is there for every sampler yet.\n"
    left_out = len(every) - len(lines)
    what = KINDS.get(kind, f"{kind} tables")
    seeds, tables = {x["seed"] for x in lines}, {x["table"] for x in lines}
    budgets = ", ".join(f"{x:g} s" for x in sorted({x["budget_s"] for x in lines}))
    first = f"{len(lines)} searches on {len(tables)} {what}; seeds: {len(seeds)}; budget: {budgets}."
    parts = [first + (f" Left out, as not every sampler has that seed yet: {left_out}." if left_out else "")]
    if kind == "held-out":
        is_whole, sentence = held_out_verdict(every, frozen)
        if not is_whole:
            # Not a figure before all are there: whoever sees some may stop, or freeze anew.
            return sentence + "\n"
        parts.append(sentence)
    elif any(x["sampler"].split()[0] != OURS for x in lines):
        parts.append(f"{verdict(lines)[1]} Here that settles nothing: it is for held-out tables.")
    reported = table_rows(lines)
    if reported:
        parts += ["## The tables", table(TABLE_HEAD, reported)]
    parts.append(
        "## Trial-seconds over ours, and how many searches arrive\n\n"
        "Geometric mean of paired ratios with its interval, above 1 ours is sooner; then the share of the "
        "rival's searches that come and stay that close. Ours is judged by what it would confirm, a rival "
        "by that or by its fastest reading, whichever is sooner in each search, which favours it; regret is "
        "that of what it would confirm, after that share of the budget."
    )
    parts.append(table(THRESHOLD_HEAD, threshold_rows(lines)))
    if any(x["sampler"] == ALL_MEANS for x in lines):
        parts.append(
            "## All means together\n\n"
            "The same over the trial-seconds of a search whose second process measures many configurations "
            "and whose screening trials are forked; rivals start a fresh process for each, but for those "
            f"that are called {FORKED}. {verdict(lines, ALL_MEANS)[1]}"
        )
        parts.append(table(THRESHOLD_HEAD, threshold_rows(lines, ALL_MEANS)))
    if kind == "adverse":
        head = ["variant", "against", "to 5 %", "to 2 %", "its failures"]
        parts += ["## By variant", table(head, variant_rows(lines))]
    if kind == "parallel":
        head = ["workers", "sampler", "searches", "clock and trial-seconds to 5 %", "to 2 %"]
        parts += ["## By workers", table(head, parallel_rows(lines))]
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
        parts.append(table(RATIO_HEAD, ratio_rows(lines, rule)))
    parts.append("## By workload: median trial-seconds to 2 %, how many got there, mean regret of the answer")
    parts.append(table(*workload_rows(lines, "by_model")))
    return "\n\n".join(parts) + "\n"


def plot(lines, path):
    """Over trial-seconds, one line per sampler: mean simple regret, and how many have come within 2 %."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "search_replay"
    whole = max(x["budget_s"] * x["workers"] for x in lines)
    times = [whole * 10 ** (-2 + 2 * k / GRID) for k in range(GRID + 1)]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    for axes in (left, right):
        axes.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)
        axes.set(xscale="log", xlabel="trial-seconds")
    for sampler in [OURS, *_others(lines)]:
        mine = [x for x in lines if x["sampler"] == sampler]
        if not mine:
            continue
        style = {"label": f"{sampler} ({len(mine)})", "linewidth": 2.5 if sampler == OURS else 1.2}
        means = [statistics.fmean(score.regret_at(x["curve"], t) for x in mine) for t in times]
        left.plot(times, means, **style)
        came = [arrival(x, 2, _theirs(sampler)) if _came(x, 2) else math.inf for x in mine]
        right.plot(times, [statistics.fmean(at <= t for at in came) for t in times], **style)
    left.set(ylabel="regret of what is recommended", ylim=(0, None), title=KINDS.get(lines[0]["set"], ""))
    right.set(ylabel="share that has come within 2 % to stay", ylim=(0, 1))
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.02, 1.0))
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def write(path, frozen=FROZEN):
    """What a file of results shows, beside it: Markdown, and a drawing where there is a library for it."""
    lines = read(path) if path.is_file() else []
    if not lines:
        return
    path.with_suffix(".md").write_text(report(lines, frozen))
    drawn = complete(lines)
    if not drawn or (lines[0]["set"] == "held-out" and not held_out_verdict(lines, frozen)[0]):
        return
    try:
        plot(drawn, path.with_suffix(".svg"))
    except ImportError:
        print("without matplotlib there is no drawing", file=sys.stderr)


def beside(lines, earlier):
    """What searches of earlier code took over these, on the same draws, by both rules: tables."""
    before = f"{OURS} before"
    mine = [x for x in lines if x["sampler"] == OURS]
    code = mine[0]["code"] if mine else ""
    theirs = [{**x, "sampler": before, "code": code} for x in earlier if x["sampler"] == OURS]
    both = {_pair(x) for x in mine} & {_pair(x) for x in theirs}
    every = [x for x in (*mine, *theirs) if _pair(x) in both]
    if not every:
        sys.exit("no search is in both files")
    found = [f"{len(both)} pairs; trial-seconds of {before} over {OURS}, above 1 it was later"]
    for rule, what in score.RULES.items():
        found += [f"Judged {what}:", table(RATIO_HEAD, ratio_rows(every, rule))]
    head = ["sampler", "proved", "false", "intervals that hold"]
    rows = []
    for sampler in (OURS, before):
        proved, false, hold = claims([x for x in every if x["sampler"] == sampler])
        rows.append([sampler, proved, false, f"{hold} of {proved}"])
    return "\n\n".join([*found, table(head, rows)]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, help="print how the planner of these searches did beside it")
    options = parser.parse_args()
    for file in (*options.files, *([options.before] if options.before else [])):
        if not file.is_file() or not read(file):
            sys.exit(f"{file.name} holds no search")
    for file in options.files:
        if options.before:
            print(beside(read(file), read(options.before)))
        else:
            write(file)


if __name__ == "__main__":
    main()
