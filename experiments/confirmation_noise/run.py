"""False wins, power and coverage of the confirmation interval, before and after the noise model.

    python run.py --label after                      # this code; writes results/after.json
    python run.py --label before --tree PATH         # an older checkout of autotune, same draws
    python run.py --report                           # writes results/summary.md from both

Each case is written as soon as it is done, and a later call does the cases that are missing.
"""

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
LASTS = tuple(range(2, 9))
"""Pairs at which the budget ends a search; `verify` has three at least and ten at most."""
VERIFY_LASTS = (3, 4, 5, 6, 8, 10)
FALSE_WINS = 0.02
SECONDARY = 0.4
"""Share of the simulations for the settings outside `MAIN`."""
MAIN = (
    "recorded",
    "recorded, 10x after screening",
    "recorded, 10x in mid-confirmation",
    "normal 5 %, 10x after screening",
    "normal 5 %, drift of 1 % a run",
    "heavy tails (t, 2 degrees of freedom)",
    "bimodal (1 run in 4 is 25 % slower)",
)


def cases(settings, n):
    """Case name -> (who, setting, gain, pairs at which the budget may end, simulations)."""
    found = {}
    for name in sorted(settings, key=lambda s: s not in MAIN):
        found[f"no gain / search / {name}"] = (
            "search",
            name,
            0.0,
            LASTS,
            n if name in MAIN else int(SECONDARY * n),
        )
    for who, gain, last in (("search", 2.0, 2), ("search", 1.3, 4), ("search", 1.3, 3), ("search", 1.1, 8)):
        found[f"{gain:g}x / {who} / normal 5 %, {last} pairs"] = (
            who,
            "normal 5 %",
            math.log(gain),
            (last,),
            n // 5,
        )
    for name in ("recorded", "recorded, 10x after screening", "recorded, restless machines"):
        found[f"no gain / verify / {name}"] = (
            "verify",
            name,
            0.0,
            VERIFY_LASTS,
            n if name == "recorded" else n // 2,
        )
    found["1.2x / verify / recorded"] = ("verify", "recorded", math.log(1.2), (10,), n // 10)
    return found


def simulate(case, n_of):
    """Counts of one case: claims, intervals, and intervals that hold the true ratio."""
    import claim_noise
    import simulated_confirmations as simulated

    who, name, gain, lasts, n = n_of
    setting = simulated.SETTINGS[name]
    pool = [s for s in claim_noise.recorded() if s.is_restless == setting.restless]
    sums = dict.fromkeys(("n", "claims", "intervals", "hold", "plain", "plain_hold", "endless"), 0)
    widths, by_last = [], {}
    for k in range(n):
        chance = random.Random(f"{case}/{k}")
        series = chance.choices(pool, [len(s.processes) for s in pool])[0]
        last = lasts[k % len(lasts)]
        one = simulated.Confirmation(setting, chance, series, gain, last, verifies=who == "verify")
        ended = one.ended()
        is_claimed = any(one.claims(c) and (not gain or c.config == simulated.HELPS) for c in ended)
        sums["n"] += 1
        sums["claims"] += is_claimed
        seen = by_last.setdefault(last, [0, 0])
        seen[0], seen[1] = seen[0] + is_claimed, seen[1] + 1
        for c in ended:
            worth = math.exp(one.worth(c.config))
            sums["intervals"] += 1
            sums["hold"] += c.speedup.low <= worth <= c.speedup.high
            sums["endless"] += c.speedup.low < 1e-3 or c.speedup.high > 1e3
            widths.append(math.log(min(1e9, c.speedup.high) / max(1e-9, c.speedup.low)) / 2.0)
        # Every other one: these take as long as all the rest.
        for c in one.plain() if k % 2 == 0 else ():
            worth = math.exp(one.worth(c.config))
            sums["plain"] += 1
            sums["plain_hold"] += c.speedup.low <= worth <= c.speedup.high
    return {
        **sums,
        "median_half_width": sorted(widths)[len(widths) // 2],
        "by_last": {str(k): v for k, v in sorted(by_last.items())},
    }


def carry_out(path, wanted):
    """Do the cases that the file does not have yet."""
    done = json.loads(path.read_text()) if path.exists() else {}
    for case, what in wanted.items():
        if done.get(case, {}).get("n", 0) >= what[-1]:
            continue
        began = time.monotonic()
        done[case] = simulate(case, what)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n")
        got = done[case]
        print(f"{case}: {got['claims']} of {got['n']} claimed ({time.monotonic() - began:.0f} s)", flush=True)
    return done


def report(before, after):
    """Both as tables."""
    import proofs

    def share(hits, n):
        return f"{hits / n:.1%}" if n else "-"

    def row(case, cells):
        return f"| {case} | " + " | ".join(cells) + " |"

    sides = (before, after)
    lines = [
        "Written by `run.py --report`. Before / after: the code without and with the noise model.",
        "",
        "## Claims where nothing differs",
        "",
        "| case | claims before | upper 95 % bound | claims after | upper 95 % bound | at most 2 % |",
        "|---|---|---|---|---|---|",
    ]
    for case, got in after.items():
        if not case.startswith("no gain"):
            continue
        cells = []
        for side in sides:
            one = side.get(case)
            cells += (
                [f"{one['claims']} of {one['n']}", f"{proofs.upper_bound(one['claims'], one['n']):.2%}"]
                if one
                else ["-", "-"]
            )
        holds = proofs.upper_bound(got["claims"], got["n"]) <= FALSE_WINS
        lines.append(row(case.removeprefix("no gain / "), [*cells, "yes" if holds else "NO"]))
    lines += [
        "",
        "## True gains that are claimed",
        "",
        "| case | before | after | lower 95 % bound after |",
        "|---|---|---|---|",
    ]
    for case, got in after.items():
        if case.startswith("no gain"):
            continue
        cells = [share(side[case]["claims"], side[case]["n"]) if case in side else "-" for side in sides]
        lines.append(row(case, [*cells, f"{proofs.lower_bound(got['claims'], got['n']):.1%}"]))
    lines += [
        "",
        "## Intervals",
        "",
        "Share of intervals that hold the true ratio: those of claims (confidence 97.8 % or more), and at",
        "95 %. Width: half of the interval, the median, in ln ratio. Far: an end beyond a factor of 1,000.",
        "",
        "| case | claims before | after | 95 % before | after | width before | after | far before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in after:
        cells = []
        for key, whole in (("hold", "intervals"), ("plain_hold", "plain")):
            cells += [share(s[case][key], s[case][whole]) if case in s else "-" for s in sides]
        cells += [f"{s[case]['median_half_width']:.3f}" if case in s else "-" for s in sides]
        cells += [str(s[case]["endless"]) if case in s else "-" for s in sides]
        lines.append(row(case, cells))
    return "\n".join(lines) + "\n"


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="after", help="name of the file under results/")
    parser.add_argument(
        "--tree", type=Path, help="checkout whose package `autotune` is judged; default: this one"
    )
    parser.add_argument("-n", type=int, default=5000, help="simulations of an A/A case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--report", action="store_true", help="write results/summary.md and end")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(words)
    sys.path[:0] = [str(chosen.tree or HERE.parents[1]), str(HERE), str(HERE.parent / "claims")]
    if not chosen.report:
        import simulated_confirmations as simulated

        carry_out(
            chosen.out / f"{chosen.label}.json",
            {k: v for k, v in cases(simulated.SETTINGS, chosen.n).items() if chosen.only in k},
        )
    both = [chosen.out / f"{label}.json" for label in ("before", "after")]
    if all(path.exists() for path in both):
        text = report(*(json.loads(path.read_text()) for path in both))
        (chosen.out / "summary.md").write_text(text)


if __name__ == "__main__":
    main()
