"""How often is a gain claimed where there is none, and how often is a true one found?

    python run.py --limit 20m --jobs 2     # as often as it takes; goes on where it stopped
    python run.py --list                   # what is done and what it says; runs nothing
    python run.py --gather --new           # from all noise that is recorded by now, from the beginning

Simulated runs, with noise taken from recorded ones, go through the search and the verification that ship.
"""

import hashlib
import json
import math
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import claim_noise  # noqa: E402 (needs the path set above)
import claim_rivals  # noqa: E402
import claim_studies  # noqa: E402
import proofs  # noqa: E402

RATIOS = (1.01, 1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
ASKED = (1.2, 2.0)
"""True ratios of which at least 95 in 100 have to be claimed within ten pairs."""
PART, SEARCHES = 250, 25
"""Comparisons of one piece of work; of whole searches fewer, so that a piece is over within a minute."""
FALSE_WINS_MOST = 0.02
POWER_LEAST = 0.95
COMPARISONS = 5000
FIVE_PER_CENT = math.log(1.05)

SETTINGS = {
    "recorded": {},
    "doubled": {"scale": 2.0},
    "drifting": {"drift": 0.01},
    "restless": {},
}
"""Noise -> what is done to it: as it was; twice as large; one per cent slower with every run; as it was
on a machine on which others worked."""
DECIDING = (
    "compare/ablation",
    "answer/answer",
    "answer/communication",
    "compare/bounds",
    "compare/break_even",
    "compare/failed_configs",
    "answer/ceilings",
    "compare/alpha_spending",
    "compare/choice",
    "compare/comparison",
    "model/config",
    "compare/control",
    "compare/rounds",
    "compare/disturbances",
    "model/effect",
    "model/knob_families",
    "compare/finalists",
    "answer/front",
    "loss/non_inferiority",
    "loss/delayed_harm_rules",
    "loss/loss_guard",
    "loss/trace",
    "model/machine_load",
    "model/measurement",
    "model/identity_cache",
    "compare/extension",
    "compare/noise_model",
    "answer/eligibility",
    "answer/pick",
    "compare/amortised_rate",
    "model/run_length",
    "model/space",
    "statistics/spread",
    "statistics/intervals",
    "model/study",
    "compare/transfer",
    "model/trial",
    "compare/loss_verdicts",
)
"""Modules of `autotune` that have a say in a claim, beside the search."""
TELLING = (
    "answer/caveats",
    "compare/coverage",
    "compare/drift",
    "loss/learning_rate",
    "statistics/window_means",
    "answer/outcome",
    "answer/reasons",
)
"""Modules that an answer is made with as well, for its words alone."""
EXPLAINING = "diagnosis"
"""Module of `autotune.search` that explains what was found, and proposes nothing to be compared."""
LABELS = {
    "search": "autotune search",
    "verify": "autotune verify",
    "paired": "train-doctor compare (emulated)",
    "ten": "10 steps, any gain",
    "ten_5": "10 steps, gain of 5 % or more",
}


def part_of(case):
    """How many comparisons a piece of this case holds."""
    return SEARCHES if "/search/" in case else PART


def units(has_restless):
    """(case, part) of everything there is to do; case is ``what/who/noise/ratio``."""
    found = []

    def add(what, who, noise, ratio, n):
        case = f"{what}/{who}/{noise}/{ratio:g}"
        found.extend((case, part) for part in range(-(-n // part_of(case))))

    for who in ("verify", "rivals"):
        add("aa", who, "recorded", 1.0, COMPARISONS)
    for ratio in ASKED:
        for who in ("rivals", "verify", "search"):
            add("power", who, "recorded", ratio, 1000)
    add("aa", "search", "recorded", 1.0, 7 * COMPARISONS // 5)
    curve = [ratio for ratio in RATIOS if ratio not in ASKED]
    for who in ("rivals", "verify", "search"):
        for ratio in curve:
            add("power", who, "recorded", ratio, PART)
    for who in ("rivals", "verify", "search"):
        for noise in ("doubled", "drifting", *(["restless"] if has_restless else [])):
            add("aa", who, noise, 1.0, 2 * PART if who == "search" else 1000)
            for ratio in ASKED:
                add("power", who, noise, ratio, PART)
    # What costs little first, and a little of every case before more of one.
    return sorted(found, key=lambda unit: ("/search/" in unit[0], unit[1]))


_SERIES = []


def series_of(noise):
    """Recorded series of that kind."""
    if not _SERIES:
        _SERIES.extend(claim_noise.recorded())
    return [s for s in _SERIES if s.is_restless == (noise == "restless")]


def work(case, part):
    """One part of one case: sums over its comparisons."""
    what, who, noise, ratio = case.split("/")
    gain = math.log(float(ratio))
    pool = series_of(noise)
    starts = [p.start for s in _SERIES for p in s.processes if p.start is not None]
    # Rivals are queried about the very pairs of a verification.
    course = f"{what}/verify/{noise}/{ratio}" if who == "rivals" else case
    sums = {}
    for k in range(part_of(case)):
        chance = random.Random(f"{course}/{part}/{k}")
        series = chance.choices(pool, [len(s.processes) for s in pool])[0]
        draw = claim_noise.Draw(series, chance, starts=starts, **SETTINGS[noise])
        if who == "search":
            one = claim_studies.searched(draw, gain)
        elif who == "verify":
            one = claim_studies.verified(draw, gain)
        else:
            one = _rivals(draw, gain, random.Random(f"{case}/{part}/{k}/starts"))
        for key, value in one.items():
            sums[key] = sums.get(key, 0) + value
    return sums


def _rivals(draw, gain, chance):
    pairs = claim_rivals.same_pairs(draw, gain)
    ten = claim_rivals.ten_steps(draw, pairs, chance)
    low, _, _ = claim_rivals.paired(pairs)
    return {
        "n": 1,
        "ten": int(ten > 0.0),
        "ten_5": int(ten > FIVE_PER_CENT),
        "paired": int(claim_rivals.says_faster(low)),
        "paired_any": int(low > 0.0),
    }


def figures(totals):
    """Who -> noise -> ratio -> (claims, comparisons); searches count where a finalist was compared."""
    found = {}
    for case, sums in totals.items():
        what, who, noise, ratio = case.split("/")
        if who == "rivals":
            reported = {name: (sums[name], sums["n"]) for name in ("ten", "ten_5", "paired")}
        elif what == "aa":
            reported = {who: (sums["claimed"], sums["confirmed"])}
        else:
            reported = {who: (sums["claimed_10"], sums["n"])}
        for name, pair in reported.items():
            found.setdefault(name, {}).setdefault(noise, {})[float(ratio)] = pair
    return found


def summary(found):
    """Lines for people."""
    lines = ["False wins (identical configs):"]
    for name, by_noise in found.items():
        for noise, by_ratio in by_noise.items():
            if 1.0 in by_ratio:
                hits, n = by_ratio[1.0]
                lines.append(
                    f"  {LABELS[name]:34} {noise:9} {hits:5} of {n:5}  {hits / n:7.2%}, "
                    f"at most {proofs.upper_bound(hits, n):.2%} (upper 95 % bound)"
                )
    lines.append("True gains claimed within ten pairs:")
    for name, by_noise in found.items():
        for noise, by_ratio in by_noise.items():
            reported = "  ".join(f"{r:g}x {h / n:.1%}" for r, (h, n) in sorted(by_ratio.items()) if r > 1.0)
            if reported:
                lines.append(f"  {LABELS[name]:34} {noise:9} {reported}")
    return lines


def intervals(totals):
    """Lines on how often intervals hold what a config is truly worth: of all, and of claims."""
    lines = ["Intervals that hold the true ratio (confidence as the claim states it):"]
    for case, sums in totals.items():
        _, who, noise, ratio = case.split("/")
        reported = []
        if sums.get("held") is not None:
            reported.append(f"of all {sums['held'] / sums['n']:.1%}")
        if sums.get("told"):
            reported.append(f"of {sums['told']} claims {sums['told_held'] / sums['told']:.1%}")
        if reported:
            lines.append(f"  {LABELS[who]:34} {noise:9} {float(ratio):g}x  {', '.join(reported)}")
    return lines if len(lines) > 1 else []


def verdicts(found):
    """What was requested, and whether it holds."""
    out = {}
    for name in ("search", "verify"):
        own = found.get(name, {}).get("recorded", {})
        if 1.0 in own:
            hits, n = own[1.0]
            bound = proofs.upper_bound(hits, n)
            out[f"{name}: false wins at most 2 % in at least {COMPARISONS} comparisons"] = (
                n >= COMPARISONS and bound <= FALSE_WINS_MOST
            )
        for ratio in ASKED:
            if ratio in own:
                hits, n = own[ratio]
                out[f"{name}: {ratio:g}x claimed in at least 95 %"] = hits / n >= POWER_LEAST
    return out


def write_power(found, folder):
    """The curve as data and as a picture."""
    own = {name: by.get("recorded", {}) for name, by in found.items()}
    data = {
        name: [
            {
                "ratio": r,
                "claimed": h,
                "n": n,
                "low": proofs.interval(h, n)[0],
                "high": proofs.interval(h, n)[1],
            }
            for r, (h, n) in sorted(points.items())
        ]
        for name, points in own.items()
        if points
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "power.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = {
        LABELS[name]: [(p["ratio"], p["claimed"] / p["n"]) for p in data[name] if p["ratio"] > 1.0]
        for name in LABELS
        if len(data.get(name, ())) > 2
    }
    if lines:
        chart = proofs.line_chart(
            "How often a true gain is claimed, ten pairs at most",
            "true ratio",
            lines,
            (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0),
            level=POWER_LEAST,
        )
        (folder / "power.svg").write_text(chart)


def identity():
    """Of the deciding sources and the recorded noise."""
    noise = json.dumps([[s.name, s.logs] for s in claim_noise.recorded()])
    own = [HERE / f"claim_{part}.py" for part in ("noise", "rivals", "studies")]
    core = [proofs.PACKAGE / f"{part}.py" for part in DECIDING]
    search = sorted(p for p in (proofs.PACKAGE / "search").rglob("*.py") if p.stem != EXPLAINING)
    return {
        "sources": proofs.sources_sha256(*core, *search, *own),
        "noise": hashlib.sha256(noise.encode()).hexdigest(),
    }


def main(words=None):
    parser = proofs.options(__doc__)
    parser.add_argument("--gather", action="store_true", help="draw from all noise that is recorded by now")
    chosen = parser.parse_args(words)
    path = chosen.out or HERE / "results" / "claims.jsonl"
    if chosen.gather or not claim_noise.KEPT.exists():
        claim_noise.keep(claim_noise.gathered())
    found = claim_noise.recorded()
    if not found:
        raise SystemExit("no recorded runs to take noise from; see README.md")
    for series in found:
        restless = ", restless" if series.is_restless else ""
        print(
            f"{series.name}: {len(series.processes)} runs, neighbours differ by {series.spread:.1%}{restless}"
        )
    ledger = proofs.Ledger(path, identity(), new=chosen.new, reads=chosen.list)
    wanted = [u for u in units(any(s.is_restless for s in found)) if chosen.only in u[0]]
    done = True
    if not chosen.list:
        done = proofs.carry_out(ledger, wanted, work, jobs=chosen.jobs, limit=chosen.limit)
    totals = ledger.totals()
    reported = figures(totals)
    write_power(reported, path.parent)
    print("\n".join([*summary(reported), *intervals(totals)]))
    for sentence, holds in verdicts(reported).items():
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
