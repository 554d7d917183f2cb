"""What is to be run, what one search did, and the table. Nothing here starts a process or reads a clock."""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median

OUTCOMES = {0: "faster", 1: "nothing faster", 8: "inconclusive"}
"""Exit code of `autotune search` -> outcome; every other code is a failure."""
PHASES = (
    ("all", (("after", "5m", 1), ("before", "5m", 1))),
    ("all", (("after", "2m", 1),)),
    ("subset", (("tpe", "5m", 1), ("random", "5m", 1))),
    ("subset", (("after", "10m", 1),)),
    ("all", (("after", "5m", 2), ("after", "2m", 2))),
)
"""Scripts, and (arm, budget, seed) of each, ordered so that an hour of it compares both trees."""
ARMS = ("after", "before", "tpe", "random")
BUSY = tuple(("busy", budget, 1) for budget in ("2m", "5m", "10m"))
BUSY_SCRIPT = "vision_digits"
SHARE_BARS = {"5m": (0.90, 8, 10), "10m": (0.97, 4, 5)}
"""Budget -> (share of the best known, scripts that must reach it, scripts measured), from the issue."""
MOST_FOREIGN_CORES = 0.25
BASELINE = "script"
COLUMNS = (
    "Script",
    "Arm",
    "Budget",
    "Seed",
    "Commit",
    "Budget used",
    "In candidates",
    "In steps",
    "First candidate",
    "Tried",
    "Outcome",
    "Claimed",
    "Re-measured",
    "Agrees",
    "Best known reached",
)
SUMMARY = (
    "Arm",
    "Budget",
    "Searches",
    "Budget used",
    "In candidates",
    "In steps",
    "Fewest tried",
    "Outcomes",
    "Claims that agree",
    "Best known reached",
)


# Plan -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Search:
    """One search that is to be run."""

    script: str
    arm: str
    budget: str
    seed: int

    @property
    def name(self):
        return f"{self.script}-{self.arm}-{self.budget}-{self.seed}"

    @property
    def budget_s(self):
        return seconds(self.budget)


def seconds(budget):
    """Return 90s, 5m or 2h in seconds."""
    return float(budget[:-1]) * {"s": 1, "m": 60, "h": 3600}[budget[-1]]


def planned(scripts, *, arms=(), budgets=(), seeds=()):
    """Return the searches in their order, as one tuple for each script of a phase.

    Args:
        scripts: Those that take part.
        arms, budgets, seeds: Those that take part; empty means all.
    """
    steps = []
    for which, wanted in PHASES:
        for script in scripts:
            if which == "subset" and not script.subset:
                continue
            chosen = tuple(
                Search(script=script.name, arm=arm, budget=budget, seed=seed)
                for arm, budget, seed in wanted
                if (not arms or arm in arms)
                and (not budgets or budget in budgets)
                and (not seeds or seed in seeds)
            )
            if chosen:
                steps.append(chosen)
    return steps


def minutes_left(searches, runs, run_s):
    """Return the minutes that searches take at most, and what timing runs of `run_s` seconds add."""
    return (sum(search.budget_s for search in searches) + runs * run_s) / 60


# One search -------------------------------------------------------------------------------------


def journal_figures(trials, *, budget_s, wall_s):
    """Summarise the trials of one search.

    Args:
        trials: As `autotune show --trials --json` lists them.
        budget_s: Budget of the search.
        wall_s: Wall time of the process of the search, start to end.

    Returns:
        ``budget_frac``: wall time over budget. ``tried``: configurations other than the baseline that were
        run, ``measured``: those of them with a measurement. ``candidate_frac``: their runs' time over the
        budget. ``step_frac``: time inside training steps of measured runs, warm-up included, over wall time.
        ``first_candidate_s``: when the first of them was started, None if there is none.
    """
    ended = [trial for trial in trials if trial.get("outcome")]
    candidates = [trial for trial in ended if trial["config"]]
    measured = [trial for trial in candidates if "window_s" in trial["outcome"]]
    starts = [trial["finished_s"] - trial["seconds"] for trial in candidates]
    return {
        "budget_frac": round(wall_s / budget_s, 4),
        "trials": len(ended),
        "tried": len({_key(trial) for trial in candidates}),
        "measured": len({_key(trial) for trial in measured}),
        "candidate_frac": round(math.fsum(trial["seconds"] for trial in candidates) / budget_s, 4),
        "step_frac": round(math.fsum(map(step_seconds, ended)) / wall_s, 4),
        "first_candidate_s": round(min(starts), 1) if starts else None,
    }


def _key(trial):
    return tuple(sorted(trial["config"].items()))


def step_seconds(trial):
    """Return the seconds of a run that training steps took.

    Measured from the start of the first step to the last recorded loss, without compiling. Runs that record
    no loss count their process time without start-up and compiling; runs without a measurement count 0.
    """
    outcome = trial["outcome"]
    if "window_s" not in outcome:
        return 0.0
    compile_s = outcome.get("compile_s", 0.0) + outcome.get("late_compile_s", 0.0)
    losses = outcome.get("loss") or ()
    if losses:
        steps_s = losses[-1]["t_s"] - compile_s
    else:
        steps_s = trial["seconds"] - outcome.get("startup_s", 0.0) - compile_s
    return min(max(steps_s, outcome["window_s"]), trial["seconds"])


def outcome(code):
    """Return the outcome that an exit code of a search means."""
    return OUTCOMES.get(code, f"failed (exit {code})")


def picked(result, name):
    """Return a pick of a search's JSON result: changed knobs and claimed ratio, or None if there is none."""
    pick = (result.get("picks") or {}).get(name)
    own = (result.get("baseline") or {}).get("knobs", {})
    changed = {knob: value for knob, value in (pick or {}).get("knobs", {}).items() if own.get(knob) != value}
    return {"knobs": changed, **pick["speedup"]} if changed else None


def claim_of(result):
    """Return the confirmed claim of a search's JSON result, or None."""
    return picked(result, result.get("pick", "best")) if result.get("is_better") else None


# Re-measured gains ------------------------------------------------------------------------------


def gain(runs, arm, interval):
    """Return an arm's rate over the script's, from the rounds of `runs` that hold both.

    Args:
        runs: Timed runs of one script; an arm is named by ``arm``.
        interval: Makes an interval of a list of log ratios.
    """
    rounds = {}
    for run in runs:
        if "rate" in run:
            rounds.setdefault(run["round"], {})[run["arm"]] = run
    logs = [
        math.log(arms[arm]["rate"] / arms[BASELINE]["rate"])
        for _, arms in sorted(rounds.items())
        if arm in arms and BASELINE in arms and arms[arm]["unit"] == arms[BASELINE]["unit"]
    ]
    return interval(logs) if logs else None


def gains(runs, interval):
    """Return {arm: gain} of every arm but the script that was timed beside it."""
    arms = sorted({run["arm"] for run in runs} - {BASELINE})
    found = {arm: gain(runs, arm, interval) for arm in arms}
    return {arm: value for arm, value in found.items() if value is not None}


def best_known(found):
    """Return the fastest arm whose interval lies above 1, or the script."""
    faster = {arm: one for arm, one in found.items() if one["low"] is not None and one["low"] > 1}
    return max(faster, key=lambda arm: faster[arm]["value"], default=BASELINE)


def agrees(claim, again):
    """Return whether a claim and its re-measurement differ by no more than both intervals allow.

    Half-widths of the logarithms add in quadrature. Of an asymmetric claim the half towards the other value
    counts.
    """
    below = again["value"] < claim["value"]
    limit = claim["low"] if below else claim["high"]
    ends = (claim["low"], claim["high"], again["low"], again["high"])
    if any(end is None or end <= 0 for end in ends):
        return None
    allowed = math.hypot(math.log(limit / claim["value"]), _half(again))
    return abs(math.log(again["value"] / claim["value"])) <= allowed


def _half(one):
    return math.log(one["high"] / one["low"]) / 2 if one["low"] else math.inf


def share(arm, found):
    """Return what the recommended arm reaches of the best known gain, with an interval.

    Recommending nothing is a gain of exactly 1. The share is 1 where the recommended arm is the best known,
    and where nothing is faster than the script and nothing was recommended.

    Returns:
        ``{"value", "low", "high"}``, or None where the arm was not re-measured, or any arm only once.
    """
    if any(one["low"] is None for one in found.values()):
        return None
    best = best_known(found)
    if arm == best:
        return {"value": 1.0, "low": 1.0, "high": 1.0}
    exact = {"value": 1.0, "low": 1.0, "high": 1.0}
    mine = exact if arm == BASELINE else found.get(arm)
    if mine is None:
        return None
    other = exact if best == BASELINE else found[best]
    half = math.hypot(_half(mine), _half(other))
    value = mine["value"] / other["value"]
    return {"value": value, "low": value * math.exp(-half), "high": value * math.exp(half)}


# Table ------------------------------------------------------------------------------------------


def undisturbed(runs):
    """Return the timed runs of rounds in which other processes used at most `MOST_FOREIGN_CORES` cores.

    A round is dropped as a whole: its runs are compared with each other.
    """
    most = MOST_FOREIGN_CORES
    loud = {(run["script"], run["round"]) for run in runs if (run.get("foreign_cores") or 0.0) > most}
    return [run for run in runs if (run["script"], run["round"]) not in loud]


def rows(lines, runs, interval):
    """Return one row of figures per search: its line, re-measured gain, agreement and share.

    Args:
        lines: Finished searches.
        runs: Timed runs of all scripts.
    """
    by_script = {}
    for run in runs:
        by_script.setdefault(run["script"], []).append(run)
    found = {script: gains(each, interval) for script, each in by_script.items()}
    ran = {(run["script"], run["arm"]) for run in runs}
    made = []
    for line in lines:
        here = found.get(line["script"], {})
        again = here.get(line["claimed_arm"]) if line["claim"] else None
        # A recommendation that never ran to the end of a window does not hold.
        fails = line["claim"] is not None and again is None and (line["script"], line["claimed_arm"]) in ran
        made.append(
            {
                **line,
                "again": again,
                "agrees": agrees(line["claim"], again) if again else False if fails else None,
                "likely_again": here.get(line["likely_arm"]) if line["likely"] else None,
                "share": share(line["claimed_arm"], here) if here else None,
            }
        )
    return made


def bars(found, hand_picked):
    """Return (text, verdict) of each bar; the verdict is True, False, or None while runs are missing.

    Args:
        hand_picked: Names of scripts whose hand-picked configurations have been timed.
    """
    after = [row for row in found if row["arm"] == "after"]
    claims = [row for row in after if row["claim"]]
    checked = [row["agrees"] for row in claims if row["agrees"] is not None]
    fewest = min((row["tried"] for row in after), default=None)
    made = [
        (f"No search tries 0 candidates: the fewest is {fewest}", None if fewest is None else fewest > 0),
    ]
    for budget, (wanted, needed, of) in SHARE_BARS.items():
        shares = mean_shares([row for row in after if row["budget"] == budget])
        point = sum(one["value"] >= wanted for one in shares.values())
        within = sum(one["high"] >= wanted for one in shares.values())
        text = (
            f"At {budget} at least {wanted:.0%} of the best known on {needed} of {of} scripts: {within} of "
            f"{len(shares)} within the error, {point} by the point estimate"
        )
        measured = shares.keys() & set(hand_picked)
        made.append((text, None if len(measured) < of else within >= needed))
    text = f"Every claim agrees with its re-measurement: {sum(checked)} of {len(checked)} timed"
    text += f", {len(claims)} made"
    refuted = len(checked) > sum(checked)
    made.append((text, False if refuted else None if not claims or len(checked) < len(claims) else True))
    return made


def mean_shares(found):
    """Return {script: share}, the geometric mean over seeds."""
    scripts = {}
    for row in found:
        if row["share"] is not None:
            scripts.setdefault(row["script"], []).append(row["share"])
    return {
        script: {
            end: math.prod(one[end] for one in each) ** (1 / len(each)) for end in ("value", "low", "high")
        }
        for script, each in scripts.items()
    }


def busy_bars(found):
    """Return (text, verdict) of the bars for searches beside a busy process."""
    busy = [row for row in found if row["arm"] == "busy"]
    if not busy:
        return []
    named = sum(row["names_load"] for row in busy)
    claims = [row["agrees"] for row in busy if row["claim"]]
    agreeing = sum(one is True for one in claims)
    text = f"Claims beside a busy process that agree with their re-measurement: {agreeing} of {len(claims)}"
    verdict = False if False in claims else None if None in claims else True
    return [
        (f"Searches that name the busy process: {named} of {len(busy)}", named == len(busy)),
        (text, verdict),
    ]


def table(found, order):
    """Return the lines of the table of all searches; `order` is the order of the scripts."""
    place = {name: number for number, name in enumerate(order)}
    arms = {arm: number for number, arm in enumerate((*ARMS, "busy"))}
    lines = [_line(COLUMNS), "|" + "---|" * len(COLUMNS)]

    def position(row):
        return place.get(row["script"], len(place)), arms[row["arm"]], seconds(row["budget"]), row["seed"]

    return [*lines, *(_line(_cells(row)) for row in sorted(found, key=position))]


def _cells(row):
    claimed, again, likely = row["claim"], row["again"], row["likely"]
    if likely and not claimed:
        claimed_text, again = f"none; likely {ratio(likely)}", row["likely_again"]
    else:
        claimed_text = ratio(claimed) if claimed else "none"
    first = row["first_candidate_s"]
    return (
        row["script"],
        row["arm"],
        row["budget"],
        str(row["seed"]),
        row["commit"][:7],
        f"{row['budget_frac']:.0%}",
        f"{row['candidate_frac']:.0%}",
        f"{row['step_frac']:.0%}",
        "never" if first is None else f"{first:.0f} s",
        str(row["tried"]),
        outcome(row["exit"]),
        claimed_text,
        ratio(again) if again else "",
        {True: "yes", False: "no", None: ""}[row["agrees"]],
        "" if row["share"] is None else percent(row["share"]),
    )


def summary(found):
    """Return the lines of the table with one row per arm and budget: medians over searches."""
    groups = {}
    for row in found:
        groups.setdefault((row["arm"], row["budget"]), []).append(row)
    lines = [_line(SUMMARY), "|" + "---|" * len(SUMMARY)]
    arms = (*ARMS, "busy")
    for (arm, budget), each in sorted(groups.items(), key=lambda g: (arms.index(g[0][0]), seconds(g[0][1]))):
        counts = Counter(outcome(row["exit"]) for row in each)
        checked = [row["agrees"] for row in each if row["agrees"] is not None]
        shares = [row["share"]["value"] for row in each if row["share"] is not None]
        middle = (
            f"{median(row[key] for row in each):.0%}"
            for key in ("budget_frac", "candidate_frac", "step_frac")
        )
        cells = (
            arm,
            budget,
            str(len(each)),
            *middle,
            str(min(row["tried"] for row in each)),
            ", ".join(f"{count} {name}" for name, count in counts.most_common()),
            f"{sum(checked)} of {len(checked)}",
            f"{median(shares):.0%}" if shares else "",
        )
        lines.append(_line(cells))
    return lines


def ratio(one):
    """Return an estimate of a ratio as text."""
    if one["low"] is None:
        return f"{one['value']:.2f}"
    return f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


def percent(one):
    return f"{one['value']:.0%} [{one['low']:.0%}, {one['high']:.0%}]"


def _line(cells):
    return f"| {' | '.join(cells)} |"


def report(found, runs, interval, *, order, machine, codes, hand_picked):
    """Return the markdown of `results/first_answer.md`.

    Args:
        machine: What `timer.machine` returns, with ``date``.
        codes: {arm: commits it was run from}.
        hand_picked: Names of scripts whose hand-picked configurations have been timed.
    """
    lines = [
        "# First answers of short searches",
        "",
        f"{machine['cores']} cores, {machine['cpu']}, torch {machine['torch']}; {machine['date']}.",
        *(f"Arm `{arm}`: commit {', '.join(sorted(each))}." for arm, each in sorted(codes.items())),
        "",
        "## Bars",
        "",
    ]
    names = {True: "reached", False: "missed", None: "open"}
    lines += [
        f"- {names[verdict]}: {text}." for text, verdict in [*bars(found, hand_picked), *busy_bars(found)]
    ]
    lines += ["", "## By arm", "", *summary(found), "", "## All searches", "", *table(found, order), ""]
    lines += [
        "## Best known configuration",
        "",
        "| Script | Configuration | Gain | Arms timed | Hand-picked ones timed |",
    ]
    lines += ["|---|---|---|---|---|"]
    for name in order:
        here = gains([run for run in runs if run["script"] == name], interval)
        if here:
            best = best_known(here)
            knobs = "the script" if best == BASELINE else f"`{best.partition(' ')[2]}`"
            value = "1" if best == BASELINE else ratio(here[best])
            lines.append(_line((name, knobs, value, str(len(here)), "yes" if name in hand_picked else "no")))
    return "\n".join(lines) + "\n"
