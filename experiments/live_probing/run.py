"""Do segments of a running process say what fresh processes say? Knob by knob, on real scripts.

    python run.py --limit 30m     # workloads take turns, a round of each; again and again until all are done
    python run.py --list          # what is done and what it says; runs nothing

A round of a workload: the script as it is; one process that goes on with every change it can be switched to;
the same changes, and the script as it is once more, in processes of their own, in random order.
Needs a machine that does nothing else.
"""

import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE.parent / "workloads"
sys.path.insert(0, str(HERE.parent / "claims"))

import proofs  # noqa: E402 - a neighbour of this file

from autotune.compare.agreement import BOUND, Agreement, Pair  # noqa: E402
from autotune.driver.planner import Planner  # noqa: E402
from autotune.inspection.host import host_facts  # noqa: E402
from autotune.inspection.script import script_facts  # noqa: E402
from autotune.knobs.registry import builtin, knobs_for  # noqa: E402
from autotune.launch.process import LocalRunner  # noqa: E402
from autotune.model.config import Config  # noqa: E402
from autotune.model.facts import Facts  # noqa: E402
from autotune.model.live import Visit  # noqa: E402
from autotune.model.measurement import Measurement  # noqa: E402
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec  # noqa: E402
from autotune.model.trial import Fidelity, Stage, Trial  # noqa: E402
from autotune.search.visits import is_live  # noqa: E402
from autotune.space.environment import user_environment  # noqa: E402
from autotune.statistics.intervals import mean_interval  # noqa: E402

NAMES = (
    *("text_chargpt", "vision_digits", "photos_denoise", "speech_vowels", "shapes_vit"),
    *("events_hawkes", "photos_colour", "weblog_sessions", "tabular_mlp"),
)
BASE = Config()
SECONDS_PER_PART = 12.0


class Workload:
    """One script, its facts, and the runner of a search.

    Args:
        script: As it is.
        window_s: Of fresh processes.
        segment_s: Shortest window of a segment.
        folder: Where processes may write; of ours, and empty.
    """

    def __init__(self, script, window_s, segment_s, folder):
        self.segment_s = segment_s
        self.runner = LocalRunner(study_dir=folder)
        request = SpaceRequest(name="live", knobs={name: () for name, knob in builtin().items() if knob.live})
        self.planner = Planner(
            knobs=knobs_for(request),
            environ=user_environment(os.environ, keep_loggers=False, trial=True),
            memory_limit_bytes=0,
        )
        host = replace(host_facts(), isolation=self.runner.isolation)
        facts = Facts(host=host, script=script_facts(str(script)), effective_batch_rule="keep")
        self.study = Study(
            spec=StudySpec(
                study_id="live",
                label=script.stem,
                script=str(script),
                args=(),
                cwd=str(script.parent),
                python=sys.executable,
                space=request,
                budget=Budget(seconds=0.0),
                effective_batch="keep",
                live=True,
            ),
            facts=facts,
        )
        self.fidelity = Fidelity(
            min_window_s=window_s,
            max_window_s=2.0 * window_s,
            min_steps=10,
            target_width=0.02,
            setup_s=120.0,
            deadline_s=180.0 + 4.0 * window_s,
        )
        self.number = 0

    def run(self, config, seed, visit=None):
        """One process; (what ended, a line about it)."""
        self.number += 1
        trial = Trial(
            number=self.number,
            config=config,
            stage=Stage.REFINE,
            fidelity=self.fidelity,
            seed=seed,
            visit=visit,
        )
        (ended,) = self.runner.run(self.planner.assign(self.study, trial))
        line = {"config": dict(config), "seconds": round(ended.seconds, 3)}
        if isinstance(ended.outcome, Measurement):
            line["rate"] = round(ended.outcome.throughput.value, 5)
            line["foreign"] = ended.outcome.contamination.foreign_cpu_frac
        else:
            line["failure"] = f"{ended.outcome.kind.label}: {ended.outcome.message}"
        return ended, line

    def changes(self):
        """Every single change that a running process can be switched to, EXACT ones first."""
        space, _ = self.planner.space(self.study.spec, self.study.facts)
        self.study = replace(self.study, space=space)
        configs = [space.complete({d.knob: v}) for d in space.free() for v in d.values]
        found = dict.fromkeys(c for c in configs if isinstance(c, Config) and c and is_live(self.study, c))
        return sorted(found, key=lambda config: space.effect(config).rank)

    def round(self, number):
        """A line of the file; None where the script as it is could not be measured."""
        ended, first = self.run(BASE, number)
        if "failure" in first:
            return None
        self.study = replace(self.study, facts=replace(self.study.facts, run=ended.facts))
        draw = random.Random(f"{self.study.spec.label}/{number}")
        changes = self.changes()
        # Within an effect another order each round: what stood before a segment is not always the same.
        ranks = {config: self.study.space.effect(config).rank for config in changes}
        order = sorted(draw.sample(changes, len(changes)), key=ranks.__getitem__)
        visit = Visit(
            configs=tuple(order),
            window_s=self.segment_s,
            limit_s=SECONDS_PER_PART * 1.5 * max(1, len(order)),
        )
        ended, own = self.run(BASE, number, visit)
        visited = ended.visited
        segments = [] if visited is None else [_segment(o) for o in visited.observations]
        fresh = [self.run(config, number)[1] for config in draw.sample([BASE, *changes], len(changes) + 1)]
        return {
            "own": own,
            "segments": segments,
            "anchors": [] if visited is None else [round(rate, 5) for rate in visited.anchors],
            "visit_s": 0.0 if visited is None else round(visited.seconds, 3),
            "fresh": [first, *fresh],
        }


def _segment(observation):
    line = {"config": dict(observation.config), "seconds": round(observation.seconds, 3)}
    if observation.ratio is None:
        return {**line, "failure": observation.failure or "unclear"}
    ratio = observation.ratio
    return {**line, "ratio": round(ratio.value, 6), "low": round(ratio.low, 6), "high": round(ratio.high, 6)}


# What it says ---------------------------------------------------------------------------------


def differences(rounds):
    """Config -> [(live, fresh)] over rounds, both as ln ratio to the script as it is."""
    found = {}
    for line in rounds:
        rates = {}
        for run in line["fresh"]:
            if run.get("rate", 0.0) > 0.0:
                rates.setdefault(Config(run["config"]), []).append(math.log(run["rate"]))
        if BASE not in rates:
            continue
        base = statistics.fmean(rates[BASE])
        for segment in line["segments"]:
            config = Config(segment["config"])
            if segment.get("ratio", 0.0) > 0.0 and config in rates:
                fresh = statistics.fmean(rates[config]) - base
                found.setdefault(config, []).append((math.log(segment["ratio"]), fresh))
    return found


def agreement(knob, found):
    """Of one knob on one workload: mean bias with its interval over rounds, rank agreement over configs."""
    mine = {config: pairs for config, pairs in found.items() if knob in config}
    pairs = tuple(
        Pair(
            config=config,
            live=statistics.fmean(live for live, _ in values),
            fresh=statistics.fmean(fresh for _, fresh in values),
            sd=0.0,
        )
        for config, values in mine.items()
    )
    biases = [live - fresh for values in mine.values() for live, fresh in values]
    mean, low, high = mean_interval(biases)
    return {
        "configs": len(pairs),
        "rounds": max(len(values) for values in mine.values()),
        "bias": round(math.expm1(mean), 5),
        "low": round(math.expm1(low), 5) if math.isfinite(low) else None,
        "high": round(math.expm1(high), 5) if math.isfinite(high) else None,
        "worst": round(max((p.bias for p in pairs), key=abs), 5),
        "rank_agreement": Agreement(knob=knob, segments=len(pairs), pairs=pairs).rank,
        "within_bound": sum(abs(p.bias) <= BOUND for p in pairs),
        "spread_live": _spread(mine, 0),
        "spread_fresh": _spread(mine, 1),
    }


def _spread(found, which):
    """Pooled standard deviation between rounds, in ln rate; None with a single one."""
    spreads = [statistics.variance(v[which] for v in values) for values in found.values() if len(values) > 1]
    return round(math.sqrt(statistics.fmean(spreads)), 5) if spreads else None


def summary(rounds_by_name):
    """Workload -> knobs, order of all configs, and what both ways took."""
    told = {}
    for name, rounds in rounds_by_name.items():
        found = differences(rounds)
        means = tuple(
            Pair(
                config=config,
                live=statistics.fmean(live for live, _ in values),
                fresh=statistics.fmean(fresh for _, fresh in values),
                sd=0.0,
            )
            for config, values in found.items()
        )
        segments = [s["seconds"] for line in rounds for s in line["segments"]]
        processes = [run["seconds"] for line in rounds for run in line["fresh"] if run["config"]]
        told[name] = {
            "rounds": len(rounds),
            "knobs": {
                knob: agreement(knob, found) for knob in sorted({knob for config in found for knob in config})
            },
            "rank_agreement": Agreement(knob="", segments=len(means), pairs=means).rank,
            "failed_segments": sum("failure" in s for line in rounds for s in line["segments"]),
            "visit_s_per_segment": _per(sum(line["visit_s"] for line in rounds), len(segments)),
            "process_s": _per(sum(processes), len(processes)),
        }
    return told


def pooled(rounds_by_name):
    """Knob -> what all workloads together say; a workload counts once for each of its configs and rounds.

    Medians beside the mean: one fresh process that a neighbour outside of the machine has slowed down moves a
    mean far. `moves_live` and `moves_fresh`: by how much two rounds of a config differ, the middle one.
    """
    biases, moves = {}, {}
    for rounds in rounds_by_name.values():
        for config, values in differences(rounds).items():
            for knob in config:
                biases.setdefault(knob, []).extend(live - fresh for live, fresh in values)
                pairs = list(itertools.pairwise(values))
                moves.setdefault(knob, []).extend((abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in pairs)
    told = {}
    for knob in sorted(biases):
        mean, low, high = mean_interval(biases[knob])
        told[knob] = {
            "pairs": len(biases[knob]),
            "bias": round(math.expm1(mean), 5),
            "low": round(math.expm1(low), 5) if math.isfinite(low) else None,
            "high": round(math.expm1(high), 5) if math.isfinite(high) else None,
            "median": round(math.expm1(statistics.median(biases[knob])), 5),
            "moves_live": _middle(live for live, _ in moves[knob]),
            "moves_fresh": _middle(fresh for _, fresh in moves[knob]),
        }
    return told


def _middle(values):
    values = list(values)
    return round(math.expm1(statistics.median(values)), 5) if values else None


def _per(seconds, count):
    return round(seconds / count, 2) if count else None


def table(told):
    """Rows for people."""
    rows = []
    for name, found in told.items():
        rows.append(
            f"{name}: {found['rounds']} rounds; order of all {found['rank_agreement']}; a segment "
            f"{found['visit_s_per_segment']} s, a process {found['process_s']} s; "
            f"{found['failed_segments']} failed"
        )
        for knob, said in found["knobs"].items():
            ends = "" if said["low"] is None else f" [{said['low']:+.1%}, {said['high']:+.1%}]"
            rows.append(
                f"  {knob}: {said['bias']:+.1%}{ends}, {said['within_bound']} of {said['configs']} within "
                f"{BOUND:.0%}, order {said['rank_agreement']}"
            )
    return rows


def pooled_rows(told):
    """Rows for people, a knob each."""
    rows = []
    for knob, found in told.items():
        ends = "" if found["low"] is None else f" [{found['low']:+.1%}, {found['high']:+.1%}]"
        row = f"{knob}, everywhere: {found['bias']:+.1%}{ends}, median {found['median']:+.1%}, "
        row += f"{found['pairs']} pairs"
        if found["moves_live"] is not None:
            row += f"; two rounds differ by {found['moves_live']:.1%} live, {found['moves_fresh']:.1%} fresh"
        rows.append(row)
    return rows


def main(words=None):
    chosen = proofs.options(__doc__, rounds=5, window=4.0, segment=1.5).parse_args(words)
    path = chosen.out or HERE / "results" / "live_probing.jsonl"
    identity = {
        "window_s": chosen.window,
        "segment_s": chosen.segment,
        "cores": len(os.sched_getaffinity(0)),
        "machine": proofs.machine(),
    }
    ledger = proofs.Ledger(path, identity, new=chosen.new, reads=chosen.list)
    # One round of each in turn: what the machine goes through in between hits all alike.
    wanted = [(name, part) for part in range(chosen.rounds) for name in NAMES if chosen.only in name]
    done = True
    if not chosen.list:
        with tempfile.TemporaryDirectory() as folder:
            made = {}

            def work(name, part):
                if name not in made:
                    script = WORKLOADS / f"{name}.py"
                    made[name] = Workload(script, chosen.window, chosen.segment, Path(folder) / name)
                line = made[name].round(part)
                if line is None:
                    raise SystemExit(f"{name} could not be measured as it is")
                return {"rounds": [line]}

            done = proofs.carry_out(ledger, wanted, work, jobs=1, limit=chosen.limit)
    rounds = {name: sums["rounds"] for name, sums in ledger.totals().items()}
    told = summary(rounds)
    print("\n".join([*table(told), *pooled_rows(pooled(rounds))]))
    if not chosen.list:
        path.with_suffix(".json").write_text(
            json.dumps({"workloads": told, "knobs": pooled(rounds)}, indent=1) + "\n"
        )
    if not done:
        print("not all is done; run it again to go on")


if __name__ == "__main__":
    main()
