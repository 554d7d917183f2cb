"""Replayed searches of one to ten minutes: how much of a budget is used, on what, and what comes of it.

    python short_budgets.py --seeds 2                                  # this checkout
    python short_budgets.py --seeds 2 --tree ../../../old --label before
    python short_budgets.py --seeds 2 --flat                           # the same tables, nothing to gain
    python short_budgets.py --without "families first" --label "without families first" --set short_ablations
    python short_budgets.py table                                      # results/short_budgets.md

One line of JSON per search in results/short_budgets.jsonl; a line that is there is not run again. A search is
a pure function of its key, so the machine's load does not matter. Tables are those of `run.py develop`.
"""

import argparse
import functools
import importlib
import json
import math
import operator
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUDGETS_S = (60.0, 120.0, 300.0, 600.0)
GAINS = 1.05
"""True speedup of a table's best configuration from which on a search is counted as one that can win."""
QUICK_START_S = 5.0
"""Scripts that start within it are to spend most of the time in training steps."""


def _reserve_of_before(costs, members, *_):
    """Three cycles at least are kept from the start, as before decision 102."""
    base = importlib.import_module("autotune.model.config").Config()
    cycle_s = costs.cycle(members) if members else 2.0 * costs.confirming(base)
    budget_s = costs.study.spec.budget.seconds
    apart_s = costs.ablation(members[0], len(members[0])) if members else 0.0
    kept_s = max(3 * cycle_s, min(5 * cycle_s, 0.4 * budget_s))
    return kept_s + (apart_s if apart_s <= 0.25 * budget_s else 0.0) + 2.0


PARTS = {
    "longer windows": {"costs:_START_SHARE": {True: 0.0, False: 0.0}},
    "four steps": {"costs:_FEWEST_STEPS": 10},
    "late reserve": {"costs:Costs.reserve": _reserve_of_before},
    "families first": {"initial_design:_uncovered": lambda *_: None},
    "cheaper finalists": {"racing:_affordable": lambda _, chosen, *__: chosen},
    "screening after pairs": {"stages:has_winner": lambda _: True},
    "repeats of disturbed runs": {"stages:_undisturbed_again": lambda _: None},
}
"""Parts of decision 102 -> what takes their place, as module of `autotune.search`:attribute. Names are those
of b9787ff; one that a checkout lacks is an error."""


def leave_out(names):
    """Put what `PARTS` has in the place of these parts into the modules of this process."""
    for where, value in [item for name in names for item in PARTS[name].items()]:
        module, _, path = where.partition(":")
        owner, _, attribute = path.rpartition(".")
        holder = importlib.import_module(f"autotune.search.{module}")
        holder = operator.attrgetter(owner)(holder) if owner else holder
        getattr(holder, attribute)
        setattr(holder, attribute, value)


def searched(module, world, name, budget_s, seed):
    """One replayed search as a line."""
    replay, runner = module("autotune.testing.replay"), module("autotune.testing.replay_runner")
    samplers, pick = module("autotune.search.samplers.registry"), module("autotune.answer.pick")
    config, stage = module("autotune.model.config").Config, module("autotune.model.trial").Stage
    rates, start = module("autotune.compare.amortised_rate"), module("autotune.model.trial").StartPolicy
    ended = replay.replay(
        world.table,
        budget_s=budget_s,
        sampler="staged",
        strategy=samplers.strategy_for("staged"),
        seed=seed,
        workers=1,
        runner=functools.partial(runner.ReplayRunner, machine=world.machine(seed)),
        start=start.COLD,
    )
    study, truth = ended.study, world.truth
    found, base = pick.answer(study), truth.quality(config())
    likely = getattr(found, "likely", None)
    named = found.best.config if found.is_better or likely is None else likely.config
    read = {c: r for c, r in rates.screened(study).items() if study.space.effect(c).name != "TRAINING"}
    ratio = found.best.speedup
    measured = [(t, t.measurement) for t in study.trials if t.measurement is not None]
    trains_s = sum(t.seconds - m.startup_s - m.all_compile_s for t, m in measured)
    tried = {t.config for t in study.trials if t.config}
    return {
        "table": name,
        "budget_s": budget_s,
        "seed": seed,
        "used": round(study.elapsed_s / budget_s, 3),
        "candidates": round(sum(t.seconds for t in study.trials if t.config) / budget_s, 3),
        "trains": round(trains_s / study.elapsed_s, 3),
        "starts_s": round(statistics.median(m.startup_s for _, m in measured), 2),
        "tried": len(tried),
        "pairs": max((t.group for t in study.trials if t.stage is stage.CONFIRM), default=0),
        "claimed": found.is_better,
        "outcome": getattr(getattr(found, "outcome", None), "value", ""),
        "unsettled": list(getattr(found, "unsettled", ())),
        "ratio": [ratio.value, ratio.low, ratio.high] if found.is_better else None,
        "true": truth.quality(found.best.config) / base,
        "named": truth.quality(named) if named else base,
        "read_fastest": truth.quality(max(read, key=read.__getitem__)),
        "met": max(truth.quality(c) for c in (config(), *tried)),
        "baseline": base,
        "can_win": 1.0 / base >= GAINS,
        "stopped": study.because,
    }


def run(options):
    """Every search that is not there yet, with the code that this process imports."""
    sys.path.insert(0, str(HERE))
    given, worlds = importlib.import_module("run"), importlib.import_module("worlds")
    table = importlib.import_module("autotune.testing.table")
    leave_out(options.without)
    code = options.code or given.code_sha256()
    names = ("label", "code", "table", "budget_s", "seed")
    known = {tuple(line[n] for n in names) for line in lines_of(options)}
    for file in given.develop_files():
        name = f"{file.parent.name}/{file.stem}" + ("+flat" if options.flat else "")
        wanted = [(b, s) for s in range(options.first_seed, options.seeds) for b in options.budgets]
        wanted = [(b, s) for b, s in wanted if (options.label, code, name, b, s) not in known]
        is_requested = not options.only or any(part in name for part in options.only)
        if not is_requested or not wanted:
            continue
        world = worlds.world(table.decode(file.read_bytes(), source=file.name))
        world = worlds.flat(world) if options.flat else world
        for budget_s, seed in wanted:
            line = searched(importlib.import_module, world, name, budget_s, seed)
            with results(options).open("a") as out:
                out.write(json.dumps({"code": code, "label": options.label, **line}) + "\n")
            print(options.label, name, budget_s, seed, line["tried"], line["claimed"], flush=True)


def results(options):
    """The file of lines."""
    return HERE / "results" / f"{options.set}.jsonl"


def lines_of(options):
    """Every search that is there."""
    path = results(options)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def shared(lines):
    """The lines of searches that every version has, so that versions are compared on the same ones."""
    labels = {line["label"] for line in lines}
    places = [(line["table"], line["budget_s"], line["seed"]) for line in lines]
    return [line for line, key in zip(lines, places, strict=True) if places.count(key) == len(labels)]


def _grouped(lines):
    """(version, budget, its lines), in the order of budgets."""
    keys = dict.fromkeys((line["label"], line["budget_s"]) for line in lines)
    for label, budget_s in sorted(keys, key=lambda key: key[1]):
        yield label, budget_s, [x for x in lines if (x["label"], x["budget_s"]) == (label, budget_s)]


def _rows(columns, rows):
    table = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _mean(lines, field, form):
    values = [line[field] for line in lines if field in line]
    return format(statistics.fmean(values), form) if values else "-"


def table_text(lines):
    """Markdown: one row for each version of the code and budget."""
    columns = (
        "code", "budget", "searches", "budget used", "in candidates", "in steps (quick starts)",
        "configurations tried (least)", "claims, of those that can win", "false claims", "interval holds",
        "nothing faster / inconclusive", "quality named", "quality read fastest", "quality of the best tried",
    )  # fmt: skip
    rows = []
    for label, budget_s, of in _grouped(lines):
        claims, can = [x for x in of if x["claimed"]], [x for x in of if x["can_win"]]
        inside = sum(x["ratio"][1] <= x["true"] <= x["ratio"][2] for x in claims)
        outcomes = [x["outcome"] for x in can]
        ended = f"{outcomes.count('nothing_faster')} / {outcomes.count('inconclusive')}"
        quick = [x for x in of if x.get("starts_s", math.inf) < QUICK_START_S]
        rows.append(
            (
                label, f"{budget_s:.0f} s", f"{len(of)}", _mean(of, "used", ".0%"),
                _mean(of, "candidates", ".0%"), _mean(quick, "trains", ".0%"),
                f"{_mean(of, 'tried', '.1f')} ({min(x['tried'] for x in of)})",
                f"{sum(x['claimed'] for x in can)} of {len(can)}", f"{sum(x['true'] < 1.0 for x in claims)}",
                f"{inside} of {len(claims)}", ended if any(outcomes) else "-", _mean(of, "named", ".3f"),
                _mean(of, "read_fastest", ".3f"), _mean(of, "met", ".3f"),
            )
        )  # fmt: skip
    return _rows(columns, rows)


def flat_text(lines):
    """Markdown: how searches end where nothing is to be gained."""
    columns = (
        "code", "budget", "searches", "budget used", "false claims", "nothing faster", "inconclusive",
        "of these too noisy", "a family not measured", "a candidate that reads faster",
    )  # fmt: skip
    rows = []
    for label, budget_s, of in _grouped(lines):
        is_open = [" ".join(x["unsettled"]) for x in of if x["outcome"] == "inconclusive"]
        counts = [sum(word in text for text in is_open) for word in ("oo noisy", "Not measured yet", "reads")]
        rows.append(
            (
                label, f"{budget_s:.0f} s", f"{len(of)}", _mean(of, "used", ".0%"),
                f"{sum(x['claimed'] for x in of)}", f"{sum(x['outcome'] == 'nothing_faster' for x in of)}",
                f"{len(is_open)}", *map(str, counts),
            )
        )  # fmt: skip
    return _rows(columns, rows)


def against_text(lines, reference):
    """Markdown: versions less the reference on the same searches, as mean and standard error of tables."""
    fields = ("named", "read_fastest", "met")
    found = {(x["label"], x["table"], x["budget_s"], x["seed"]): x for x in lines}
    others = [label for label in dict.fromkeys(x["label"] for x in lines) if label != reference]
    rows = []
    for label, budget_s in [(o, b) for b in sorted({x["budget_s"] for x in lines}) for o in others]:
        of = {key: (reference, *key[1:]) for key in found if (key[0], key[2]) == (label, budget_s)}
        pairs = [(found[key], found[other]) for key, other in of.items() if other in found]
        if not pairs:
            continue
        cells = []
        for field in fields:
            by_table = {}
            for one, other in pairs:
                if field in one and field in other:
                    by_table.setdefault(one["table"], []).append(one[field] - other[field])
            means = [statistics.fmean(values) for values in by_table.values()]
            error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
            cells.append(f"{statistics.fmean(means):+.3f} ± {error:.3f}" if means else "-")
        claims = f"{sum(o['claimed'] for _, o in pairs)} -> {sum(o['claimed'] for o, _ in pairs)}"
        trains = [x for x, _ in pairs if x.get("starts_s", math.inf) < QUICK_START_S]
        rows.append(
            (label, f"{budget_s:.0f} s", f"{len(pairs)}", *cells, claims, _mean(trains, "trains", ".0%"))
        )
    columns = ("version", "budget", "searches", *(f"quality: {f.replace('_', ' ')}" for f in fields))
    return _rows((*columns, "claims", "in steps"), rows)


TEXT = """Replayed searches with short budgets; made by `short_budgets.py`. Quality is the true rate of a
configuration over that of the table's best. *Named* is the claim, else the likely candidate, else
the script. *In steps* is the share of wall time in training steps, of scripts that start within five
seconds. Every configuration counts that keeps the training.

"""


def write(options):
    """The Markdown beside the lines; its text."""
    lines = lines_of(options)
    plain, flat = ([x for x in lines if x["table"].endswith("+flat") is is_flat] for is_flat in (False, True))
    text = TEXT + table_text(shared(plain))
    if options.reference:
        text += f"\nDifferences from *{options.reference}* on the same searches, mean and standard error of\n"
        text += f"tables:\n\n{against_text(plain, options.reference)}"
    if flat:
        text += (
            "\nThe same tables with nothing to gain (what is faster than the script trains at its rate):\n\n"
        )
        text += flat_text(flat)
    results(options).with_suffix(".md").write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--tree", type=Path, help="another checkout whose autotune is replayed")
    parser.add_argument("--label", default="after")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS_S)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--flat", action="store_true", help="nothing is to be gained")
    parser.add_argument("--without", nargs="*", default=(), choices=PARTS, metavar="PART")
    parser.add_argument("--set", default="short_budgets", help="name of the files of results")
    parser.add_argument("--reference", default="", help="version that the others are compared with")
    parser.add_argument("--code", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tree is not None:
        words = [w for w in sys.argv[1:] if w not in ("--tree", str(options.tree))]
        variables = {**os.environ, "PYTHONPATH": str(options.tree.resolve())}
        theirs = subprocess.run(
            ["git", "-C", str(options.tree), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
        )
        words += ["--code", theirs.stdout.strip()]
        return subprocess.run(
            [sys.executable, str(HERE / "short_budgets.py"), *words], env=variables
        ).returncode
    if options.what == "run":
        run(options)
    print(write(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
