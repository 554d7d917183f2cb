"""Replayed searches of one to ten minutes: how much of a budget is used, on what, and what comes of it.

    python short_budgets.py --seeds 2                      # this checkout
    python short_budgets.py --seeds 2 --tree ../../../old  # another one, in the same file
    python short_budgets.py table                          # results/short_budgets.md

One line of JSON per search in results/short_budgets.jsonl; a line that is there is not run again. A search is
a pure function of its key, so the machine's load does not matter. Tables are those of `run.py develop`.
"""

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "short_budgets.jsonl"
BUDGETS_S = (60.0, 120.0, 300.0, 600.0)
GAINS = 1.05
"""True speedup of a table's best configuration from which on a search is counted as one that can win."""


def searched(module, world, name, budget_s, seed):
    """One replayed search as a line."""
    replay, runner = module("autotune.testing.replay"), module("autotune.launch.replay")
    samplers, pick = module("autotune.search.samplers"), module("autotune.core.pick")
    config, stage = module("autotune.core.config").Config, module("autotune.core.trial").Stage
    rates, start = module("autotune.core.rates"), module("autotune.core.trial").StartPolicy
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
    return {
        "table": name,
        "budget_s": budget_s,
        "seed": seed,
        "used": round(study.elapsed_s / budget_s, 3),
        "candidates": round(sum(t.seconds for t in study.trials if t.config) / budget_s, 3),
        "tried": len({t.config for t in study.trials if t.config}),
        "pairs": max((t.group for t in study.trials if t.stage is stage.CONFIRM), default=0),
        "claimed": found.is_better,
        "outcome": getattr(getattr(found, "outcome", None), "value", ""),
        "ratio": [ratio.value, ratio.low, ratio.high] if found.is_better else None,
        "true": truth.quality(found.best.config) / base,
        "named": truth.quality(named) if named else base,
        "read_fastest": truth.quality(max(read, key=read.__getitem__)),
        "baseline": base,
        "can_win": 1.0 / base >= GAINS,
        "stopped": study.because,
    }


def run(options):
    """Every search that is not there yet, with the code that this process imports."""
    sys.path.insert(0, str(HERE))
    given, worlds = importlib.import_module("run"), importlib.import_module("worlds")
    table = importlib.import_module("autotune.core.table")
    code = options.code or given.code_sha256()
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    known = {(line["code"], line["table"], line["budget_s"], line["seed"]) for line in lines}
    for file in given.develop_files():
        name = f"{file.parent.name}/{file.stem}"
        wanted = [(b, s) for b in options.budgets for s in range(options.seeds)]
        wanted = [(b, s) for b, s in wanted if (code, name, b, s) not in known]
        is_asked = not options.only or any(part in name for part in options.only)
        if not is_asked or not wanted:
            continue
        world = worlds.world(table.decode(file.read_bytes(), source=file.name))
        for budget_s, seed in wanted:
            line = searched(importlib.import_module, world, name, budget_s, seed)
            with RESULTS.open("a") as out:
                out.write(json.dumps({"code": code, "label": options.label, **line}) + "\n")
            print(options.label, name, budget_s, seed, line["tried"], line["claimed"], flush=True)


def table_text(lines):
    """Markdown: one row for each version of the code and budget."""
    columns = (
        "code", "budget", "searches", "budget used", "in candidates", "configurations tried (least)",
        "claims, of those that can win", "false claims", "interval holds", "quality named",
        "quality read fastest",
    )  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    # Versions are compared on the searches that all of them have.
    labels = {line["label"] for line in lines}
    places = [(line["table"], line["budget_s"], line["seed"]) for line in lines]
    lines = [line for line, key in zip(lines, places, strict=True) if places.count(key) == len(labels)]
    keys = dict.fromkeys((line["label"], line["budget_s"]) for line in lines)
    for label, budget_s in sorted(keys, key=lambda key: (key[1], key[0])):
        of = [line for line in lines if (line["label"], line["budget_s"]) == (label, budget_s)]
        claims = [line for line in of if line["claimed"]]
        can = [line for line in of if line["can_win"]]
        inside = sum(line["ratio"][1] <= line["true"] <= line["ratio"][2] for line in claims)

        def mean(field, of=of):
            return statistics.fmean(line[field] for line in of)

        rows.append(
            f"| {label} | {budget_s:.0f} s | {len(of)} | {mean('used'):.0%} | {mean('candidates'):.0%} | "
            f"{mean('tried'):.1f} ({min(line['tried'] for line in of)}) | "
            f"{sum(line['claimed'] for line in can)} of {len(can)} | "
            f"{sum(line['true'] < 1.0 for line in claims)} | {inside} of {len(claims)} | "
            f"{mean('named'):.3f} | {mean('read_fastest'):.3f} |"
        )
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--tree", type=Path, help="another checkout whose autotune is replayed")
    parser.add_argument("--label", default="after")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS_S)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=())
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
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    text = table_text(lines)
    RESULTS.with_suffix(".md").write_text(
        "Replayed searches with short budgets; made by `short_budgets.py`. Quality is the true rate of a\n"
        "configuration over that of the table's best. *Named* is the claim, else the likely candidate, else\n"
        "the script.\n\n" + text
    )
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
