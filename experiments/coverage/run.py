"""Does the interval of one process's throughput hold the truth as often as it says?

    python run.py --limit 10m --jobs 2     # as often as it takes; goes on where it stopped
    python run.py --list                   # what is done and what it says; runs nothing

Simulated steps of known mean go through the recorder and the fold that ship.
"""

import itertools
import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "claims")]

import coverage_process as process  # noqa: E402 (needs the path set above)
import coverage_traces as traces  # noqa: E402
import proofs  # noqa: E402

WINDOWS_S = (4.0, 10.0, 20.0)
ENDS = {
    "brief_screen": (0.05, 0.75, 1.5),
    "brief_confirm": (0.02, 0.75, 2.5),
    "short_confirm": (0.02, 0.866, 3.9),
    "screen_quick": (0.05, 0.75, 1.6),
    "screen_usual": (0.05, 1.0, 2.4),
    "screen_explore": (0.05, 1.5, 4.0),
    "quick": (0.05, 1.5, 4.0),
    "usual": (0.05, 2.0, 6.0),
    "usual_confirm": (0.02, 2.0, 9.0),
    "explore": (0.05, 3.0, 10.0),
    "confirm": (0.02, 3.0, 15.0),
}
"""How runs of a search end: when the interval is so wide, but not before and not after so many seconds.
First choosing and confirming in searches of two and of five minutes. The others are of windows that grew in
steps: choosing, in searches of up to four minutes, of twenty and of an hour; then the script and, by name,
confirmation in the same. All of them enclose the windows that grow with the budget."""
TRACES = 1000
PART = 250
SEEDS = "b"
"""Chance begins anew with every revision of the estimator: none is judged by the traces it was made on."""
ASKED = (0.93, 0.97)
LABELLED_MOST = 0.05
_ENOUGH = 4000


def units():
    """(case, part); case is ``kind/rule``, the rule a window's length or how it ends."""
    fixed = [f"{window_s:g}s" for window_s in WINDOWS_S]
    cases = [f"{kind}/{rule}" for kind in reversed(traces.KINDS) for rule in fixed]
    cases += [f"drift{amount:g}/{rule}" for amount in traces.DRIFTS for rule in fixed]
    cases += [f"{kind}/{end}" for kind in traces.KINDS for end in ENDS]
    # A little of every case first.
    return [(case, part) for part in range(TRACES // PART) for case in cases]


def work(case, part):
    """Sums over one part of a case."""
    kind, rule = case.split("/")
    if rule in ENDS:
        width, least_s, most_s = ENDS[rule]
    else:
        width, least_s, most_s = 0.0, None, float(rule[:-1])
    wanted = process.fidelity(most_s, width=width, least_s=least_s)
    sums = {"n": 0, "held": 0, "above": 0, "labelled": 0, "width": 0.0, "bias": 0.0, "seconds": 0.0}
    if kind in traces.RARE_S:
        sums |= {"showed": 0, "held_showed": 0}
    for k in range(PART):
        draw = random.Random(f"{SEEDS}/{case}/{part}/{k}")
        if kind.startswith("drift"):
            steps, workers = traces.drift(draw, float(kind[5:]), most_s), 0
        else:
            steps, workers = traces.of(kind, draw)
        ran = process.run(itertools.islice(steps, _ENOUGH), wanted, workers=workers)
        found = ran.measurement.throughput
        sums["n"] += 1
        held = found.low <= traces.TRUTH <= found.high
        sums["held"] += held
        if kind in traces.RARE_S and _showed(ran, traces.RARE_S[kind]):
            sums["showed"] += 1
            sums["held_showed"] += held
        sums["above"] += found.low > traces.TRUTH
        sums["labelled"] += ran.closed.steady != "steady"
        sums["width"] += found.relative_width if found.low > 0.0 else 2.0
        sums["bias"] += found.value / traces.TRUTH - 1.0
        sums["seconds"] += ran.measurement.window_s
    return sums


def _showed(ran, rare_s):
    """Whether the window held a step of the rare kind."""
    begins_ns = ran.rows[-1].t_ns - (ran.measurement.window_s + 1e-6) * process.NS
    ends_ns = [row.t_ns for row in ran.rows if row.t_ns >= begins_ns]
    return any(b - a > rare_s * process.NS for a, b in itertools.pairwise(ends_ns))


def table(totals):
    """Rows for people and for README.md."""
    lines = [
        "| kind | window | traces | truth inside | bounds | rare ones seen | not steady | width | bias |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, s in totals.items():
        kind, rule = case.split("/")
        n = s["n"]
        low, high = proofs.interval(s["held"], n)
        length = f"{s['seconds'] / n:.1f} s"
        if rule in ENDS:
            width, _, most_s = ENDS[rule]
            length = f"until {width:.0%} wide, {most_s:g} s at most ({length})"
        held = "" if kind.startswith("drift") else f"{s['held'] / n:.1%} | {low:.1%} to {high:.1%}"
        rare = "-"
        if s.get("showed"):
            rare = f"{s['held_showed'] / s['showed']:.1%} of {s['showed'] / n:.1%}"
        lines.append(
            f"| {kind} | {length} | {n} | {held or '- | -'} | {rare} | {s['labelled'] / n:.1%} | "
            f"{s['width'] / n:.1%} | {s['bias'] / n:+.2%} |"
        )
    return lines


def failing(totals):
    """Sentences on what was requested and does not hold."""
    out = []
    for case, s in totals.items():
        kind, _ = case.split("/")
        share = s["held"] / s["n"]
        if not kind.startswith("drift") and not ASKED[0] <= share <= ASKED[1]:
            out.append(f"{case}: the truth is inside in {share:.1%}")
        if kind == "steady" and s["labelled"] / s["n"] > LABELLED_MOST:
            out.append(f"{case}: steady traces called drifting in {s['labelled'] / s['n']:.1%}")
    return out


def identity():
    """Of the sources that decide."""
    package = proofs.PACKAGE
    deciding = (
        package / "statistics",
        package / "trial" / "measure",
        package / "launch" / "result",
        HERE / "coverage_process.py",
        HERE / "coverage_traces.py",
    )
    return {"sources": proofs.sources_sha256(*deciding)}


def main(words=None):
    chosen = proofs.options(__doc__).parse_args(words)
    path = chosen.out or HERE / "results" / "coverage.jsonl"
    ledger = proofs.Ledger(path, identity(), new=chosen.new, reads=chosen.list)
    wanted = [u for u in units() if chosen.only in u[0]]
    done = True
    if not chosen.list:
        done = proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit)
    totals = ledger.totals()
    print("\n".join(table(totals)))
    for sentence in failing(totals):
        print(f"DOES NOT HOLD: {sentence}")
    (path.with_suffix(".json")).write_text(json.dumps(totals, indent=1) + "\n")
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
