"""What the simulated proofs are made of: bounds, results that are gone on with, and each figure's source."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import math
import random
import statistics
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import claim_noise
import claim_rivals
import claim_studies
import coverage_process
import coverage_traces
import fastest
import guard_traces
import proofs
import pytest
import search_world

from autotune.loss.loss_guard import judge
from autotune.model.config import Config
from autotune.model.study import Study
from autotune.model.trial import Stage
from autotune.search.costs import Costs

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def script(folder: str) -> Any:
    """`run.py` of an experiment, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{folder}_run", EXPERIMENTS / folder / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"{folder}_run"] = module
    spec.loader.exec_module(module)
    return module


# Bounds --------------------------------------------------------------------------------------------


def test_bounds_on_a_share_are_those_of_the_binomial_distribution() -> None:
    # No hit in n: 1 - 0.05 ** (1 / n).
    assert proofs.upper_bound(0, 100) == pytest.approx(1 - 0.05**0.01, rel=1e-6)
    assert proofs.lower_bound(100, 100) == pytest.approx(0.05**0.01, rel=1e-6)
    assert proofs.upper_bound(5, 5) == 1.0
    assert proofs.lower_bound(0, 7) == 0.0
    scipy_stats = pytest.importorskip("scipy.stats")
    for hits, n in ((1, 20), (80, 5000), (950, 1000), (500, 1000), (4990, 5000)):
        low, high = proofs.interval(hits, n)
        assert low == pytest.approx(float(scipy_stats.beta.ppf(0.025, hits, n - hits + 1)), rel=1e-6)
        assert high == pytest.approx(float(scipy_stats.beta.ppf(0.975, hits + 1, n - hits)), rel=1e-6)


# Results -------------------------------------------------------------------------------------------


def test_a_proof_goes_on_where_it_stopped_and_does_no_part_twice(tmp_path: Path) -> None:
    path, requested = tmp_path / "r.jsonl", []

    def work(case: str, part: int) -> dict[str, int]:
        requested.append((case, part))
        return {"n": 10, "hits": part}

    wanted = [("a", 0), ("a", 1), ("b", 0)]
    first = proofs.Ledger(path, {"v": 1})
    assert proofs.carry_out(first, wanted[:2], work, jobs=1, limit="")
    with pytest.raises(SystemExit, match="another process"):
        proofs.Ledger(path, {"v": 1})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"case": "b", "part": 0, "n"')  # killed in the middle of a line
    again = proofs.Ledger(path, {"v": 1})
    assert proofs.carry_out(again, wanted, work, jobs=1, limit="1h")
    again.close()
    assert requested == wanted
    last = proofs.Ledger(path, {"v": 1}, reads=True)
    assert last.totals() == {"a": {"n": 20, "hits": 1}, "b": {"n": 10, "hits": 0}}
    assert [json.loads(line)["date"] for line in path.read_text().splitlines()[:1]] == [last.header["date"]]


def test_figures_of_other_sources_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = proofs.Ledger(path, {"v": 1})
    first.add({"case": "a", "part": 0, "n": 1})
    first.close()
    with pytest.raises(SystemExit, match="--new"):
        proofs.Ledger(path, {"v": 2})
    assert proofs.Ledger(path, {"v": 2}, reads=True).totals() == {"a": {"n": 1}}


def test_too_little_time_leaves_work_for_the_next_call(tmp_path: Path) -> None:
    ledger = proofs.Ledger(tmp_path / "r.jsonl", {})

    def work(*_: Any) -> dict[str, int]:
        time.sleep(0.05)
        return {"n": 1}

    assert not proofs.carry_out(ledger, [("a", 0), ("a", 1)], work, jobs=1, limit="20ms")
    assert list(ledger.lines) == [("a", 0)]
    ledger.close()


def test_the_chart_is_a_picture() -> None:
    text = proofs.line_chart(
        "A < B", "ratio", {"one & only": [(1.01, 0.1), (2.0, 1.0)]}, (1.01, 1.2, 2.0), level=0.95
    )
    root = ET.fromstring(text)
    words = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"A < B", "one & only", "ratio"} <= set(words)
    assert sum(e.tag.endswith("circle") for e in root.iter()) == 2


# Claims --------------------------------------------------------------------------------------------


def series(spread: float = 0.02, n: int = 40, *, foreign: float = 0.0) -> claim_noise.Series:
    draw = random.Random(f"{spread}/{n}")
    runs = [
        claim_noise.Process(
            rate=100 * math.exp(draw.gauss(0, spread)), foreign=foreign, start=draw.gauss(0, 2 * spread)
        )
        for _ in range(n)
    ]
    return claim_noise.Series(name="made", processes=tuple(runs))


def drawn(k: int, **more: Any) -> claim_noise.Draw:
    return claim_noise.Draw(series(), random.Random(k), **more)


def test_drawn_runs_differ_as_the_recorded_ones_do() -> None:
    draw = drawn(1)
    values = [draw.run()[0] for _ in range(4001)]
    steps = [b - a for a, b in itertools.pairwise(values)]
    found = math.sqrt(math.fsum(v * v for v in steps) / len(steps) / 2)
    assert found == pytest.approx(series().spread * math.sqrt(1 + claim_noise.JITTER**2), rel=0.1)
    # What the series was made with.
    assert found == pytest.approx(0.02, rel=0.25)


def test_a_machine_that_gets_slower_shows_in_what_is_drawn() -> None:
    draw = drawn(2, drift=0.01)
    values = [draw.run()[0] for _ in range(200)]
    assert values[-1] - values[0] == pytest.approx(-2.0, abs=0.2)


def test_a_machine_with_neighbours_or_with_runs_unlike_each_other_is_restless() -> None:
    assert not series(0.02).is_restless
    assert series(0.1).is_restless
    assert series(0.02, foreign=1.0).is_restless


def test_the_first_blocks_with_ten_steps_are_a_ten_step_timing() -> None:
    assert claim_noise.start_of([60, 60, 60], [6, 6, 6], [1.0, 1.0, 2.0]) == pytest.approx(math.log(60 / 45))


def test_doubling_is_claimed_by_the_search_and_by_verify_within_ten_pairs() -> None:
    for k in range(3):
        found = claim_studies.searched(drawn(k), math.log(2.0))
        assert (found["claimed"], found["claimed_10"]) == (1, 1)
        assert claim_studies.verified(drawn(k), math.log(2.0))["claimed"] == 1


def test_identical_configs_are_seldom_distinguished_and_an_early_end_counts_apart() -> None:
    found = [claim_studies.verified(drawn(k), 0.0) for k in range(12)]
    assert sum(f["claimed"] for f in found) <= 2
    assert all(3 <= f["cycles"] <= claim_studies.MOST_PAIRS for f in found)
    study = claim_studies.carried_through(claim_studies.Staged(), drawn(5), lambda c: 0.05 if c else 0.0)
    groups = {t.group for t in claim_studies.up_to(study, 3).trials}
    assert max(groups) == 3


def test_rivals_use_the_very_pairs_of_a_verification() -> None:
    run = script("claims")
    requested: dict[str, list[float]] = {}

    class Heard(claim_noise.Draw):
        def run(self) -> tuple[float, float]:
            found = super().run()
            requested[who].append(found[0])
            return found

    run._SERIES.append(series())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(claim_noise, "Draw", Heard)
        patched.setattr(run, "part_of", lambda _case: 1)
        for who in ("verify", "rivals"):
            requested[who] = []
            run.work(f"power/{who}/recorded/1.02", 7)
    # Two runs in no pair, then the pairs, in the same places of the same course.
    assert len(requested["rivals"]) == 2 + 2 * claim_rivals.PAIRS
    assert requested["verify"][: len(requested["rivals"])] == requested["rivals"]
    draw = drawn(3)
    pairs = claim_rivals.same_pairs(draw, 0.5)
    study = claim_studies.carried_through(
        claim_studies.Verification(claim_studies.HELPS), drawn(3), lambda c: 0.5 if c else 0.0
    )
    rates: dict[int, dict[bool, float]] = {}
    for trial in study.of(claim_studies.BASE, Stage.CONFIRM) + study.of(claim_studies.HELPS, Stage.CONFIRM):
        assert trial.measurement is not None
        worth = math.log(trial.measurement.throughput.value / claim_studies.RATE)
        rates.setdefault(trial.group, {})[bool(trial.config)] = worth
    for group, (base, ours) in enumerate(pairs, start=1):
        if group in rates:
            assert rates[group] == {False: pytest.approx(base), True: pytest.approx(ours)}


PURE = tuple(
    f"autotune.{package}."
    for package in ("answer", "compare", "loss", "model", "source", "statistics", "text")
)


def test_whatever_a_claim_is_made_with_is_among_the_sources_of_its_figures() -> None:
    run = script("claims")
    called: set[str] = set()

    def called_now(frame: Any, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(PURE):
            called.add(name.removeprefix("autotune.").replace(".", "/"))

    sys.setprofile(called_now)
    try:
        claim_studies.searched(drawn(1), math.log(1.2))
        claim_studies.verified(drawn(1), math.log(1.2))
    finally:
        sys.setprofile(None)
    assert "compare/comparison" in called
    assert called <= {*run.DECIDING, *run.TELLING}


def test_the_claims_that_are_kept_are_of_the_noise_that_is_kept_beside_them() -> None:
    """Or nobody could go on with them: `run.py` refuses to add to figures of other noise."""
    lines = (EXPERIMENTS / "claims" / "results" / "claims.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    noise = json.dumps([[s.name, s.logs] for s in claim_noise.recorded()])
    assert header["identity"]["noise"] == hashlib.sha256(noise.encode()).hexdigest()


def test_kept_series_are_read_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results" / "series.json"
    monkeypatch.setattr(claim_noise, "KEPT", path)
    claim_noise.keep([series()], path)
    assert claim_noise.recorded() == [series()]


def test_a_plain_timing_claims_half_of_all_that_is_nothing() -> None:
    wins = 0
    for k in range(400):
        draw = drawn(k)
        pairs = claim_rivals.same_pairs(draw, 0.0)
        wins += claim_rivals.ten_steps(draw, pairs, random.Random(k)) > 0.0
    assert 140 <= wins <= 260


def test_a_range_of_five_pairs_is_above_one_in_about_three_of_a_hundred() -> None:
    wins = sum(claim_rivals.paired(claim_rivals.same_pairs(drawn(k), 0.0))[0] > 0.0 for k in range(2000))
    assert 0.015 <= wins / 2000 <= 0.05
    assert not claim_rivals.says_faster(math.log(1.015)), "and it has to clear one by two per cent"
    assert claim_rivals.says_faster(math.log(1.025))


def test_one_stalled_run_is_set_aside_and_two_are_not() -> None:
    quiet = [(0.0, 0.01 * k) for k in range(5)]
    one = [*quiet[:2], (0.0, -3.0), *quiet[3:]]
    assert len(claim_rivals._without_stalls(one)) == 4
    two = [(-3.0, 0.01), (0.0, -3.0), *quiet[2:]]
    assert len(claim_rivals._without_stalls(two)) == 5


@pytest.mark.thorough
def test_the_report_on_the_claims_can_be_read_off_their_sums(tmp_path: Path) -> None:
    run = script("claims")
    totals = {
        "aa/search/recorded/1": {"n": 7000, "confirmed": 5200, "claimed": 30, "claimed_10": 29},
        "aa/rivals/recorded/1": {"n": 5000, "ten": 2500, "ten_5": 400, "paired": 160},
        "power/search/recorded/1.2": {"n": 100, "confirmed": 100, "claimed": 99, "claimed_10": 98},
        "power/search/recorded/2": {"n": 100, "confirmed": 100, "claimed": 90, "claimed_10": 90},
    }
    reported = run.figures(totals)
    assert reported["search"]["recorded"] == {1.0: (30, 5200), 1.2: (98, 100), 2.0: (90, 100)}
    holds = run.verdicts(reported)
    assert list(holds.values()) == [True, True, False]
    run.write_power(reported, tmp_path)
    assert json.loads((tmp_path / "power.json").read_text())["ten"][0]["claimed"] == 2500
    assert any("50.00%" in line for line in run.summary(reported))
    totals["power/search/recorded/1.2"] |= {"told": 98, "told_held": 97}
    totals["aa/verify/recorded/1"] = {
        "n": 200,
        "confirmed": 200,
        "claimed": 2,
        "held": 196,
        "told": 2,
        "told_held": 0,
    }
    lines = run.intervals(totals)
    assert len(lines) == 3
    assert "1.2x  of 98 claims 99.0%" in lines[1]
    assert "of all 98.0%, of 2 claims 0.0%" in lines[2]


# The time to equal loss


def test_a_config_that_trains_otherwise_and_is_worth_nothing_is_seldom_claimed_and_a_doubling_is() -> None:
    found = [fastest.compared(drawn(k), fastest.CASES["1"], random.Random(k)) for k in range(6)]
    assert sum(f["claimed"] for f in found) <= 1
    assert all(f["n"] == 1 and f["claimed"] + f["unshown"] <= 1 for f in found)
    double = [fastest.compared(drawn(k), fastest.CASES["2"], random.Random(k)) for k in range(6)]
    assert sum(f["claimed"] for f in double) >= 5
    assert sum(f["held"] for f in double) >= 5


@pytest.mark.parametrize("name", ["slower/2", "slower/1.5", "plateau/1", "plateau/2"])
def test_a_higher_rate_is_no_gain_where_less_is_learned(name: str) -> None:
    found = [fastest.compared(drawn(k), fastest.CASES[name], random.Random(k)) for k in range(6)]
    assert sum(f["claimed"] for f in found) == 0


def test_a_planted_plateau_lies_a_margin_above_what_the_script_has_late() -> None:
    script = fastest.guard_traces.Simulated(random.Random(5))
    high, higher = (fastest.CASES[f"plateau/{n}"].level(script)(10_000) for n in (1, 2))
    assert higher - high == pytest.approx(script.spread())
    assert script.level(64) < high - script.spread() < script.level(53)
    assert fastest.CASES["slower/2"].level(script)(100) == script.level(45.0)
    assert fastest.CASES["slower/2"].worth == pytest.approx(0.9)


def test_what_is_reported_of_the_time_to_equal_loss_is_read_off_its_sums() -> None:
    sums = {"n": 200, "claimed": 2, "unshown": 1, "told": 199, "held": 196, "wide": 39.8}
    line = fastest.table({"recorded/1": sums})[-1]
    assert line.startswith("| recorded | 1 | 1x | 2 of 200 | 0.00% to 3.1")
    assert line.endswith("| 1 | 196 of 199 | 0.200 |")
    line = fastest.table({"recorded/plateau/1": sums})[-1]
    assert line.startswith("| recorded | plateau/1 | never there | 2 of 200 | 0.00% to 3.1")
    assert line.endswith("| 1 | - | 0.200 |")


# Coverage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", coverage_traces.KINDS)
def test_every_kind_of_trace_has_the_mean_it_says(kind: str) -> None:
    draw = random.Random(kind)
    seconds, n = 0.0, 0
    for _ in range(20):
        steps, _ = coverage_traces.of(kind, draw)
        # The start that is slower is no part of the truth.
        for step in itertools.islice(steps, 200 if kind == "warm_up" else 0, 1400):
            seconds, n = seconds + step.period_s, n + 1
    assert coverage_process.BATCH * n / seconds == pytest.approx(coverage_traces.TRUTH, rel=0.02)


def test_a_steady_process_is_measured_within_its_interval_and_called_steady() -> None:
    held = labelled = whole = 0
    for k in range(40):
        steps, workers = coverage_traces.of("steady", random.Random(k))
        ran = coverage_process.run(steps, coverage_process.fidelity(4.0), workers=workers)
        found = ran.measurement.throughput
        held += found.low <= coverage_traces.TRUTH <= found.high
        labelled += ran.closed.steady != "steady"
        whole += 3.9 < ran.measurement.window_s < 4.5
    assert whole >= 37, "no start is cut where there is none"
    assert held >= 34
    assert labelled <= 4


def test_a_start_that_may_be_none_is_reported_and_the_interval_holds_either_way() -> None:
    doubted = 0
    for k in range(40):
        steps, workers = coverage_traces.of("autocorrelated_more", random.Random(k))
        ran = coverage_process.run(steps, coverage_process.fidelity(4.0), workers=workers)
        if "doubt_low" not in ran.closed.counters:
            continue
        doubted += 1
        found, step = ran.measurement.throughput, ran.measurement.step_time_s
        low, high = (ran.closed.counters[f"doubt_{end}"] for end in ("low", "high"))
        assert low <= 1.0 <= high
        assert found.low <= found.value * low * (1 + 1e-9)
        assert found.high >= found.value * high * (1 - 1e-9)
        assert low == 0.0 or step.high >= step.value / low * (1 - 1e-9)
    assert doubted >= 2, "such loops look as if they warmed up"


def test_a_drift_is_called_one() -> None:
    called = 0
    for k in range(10):
        steps = coverage_traces.drift(random.Random(k), 0.4, 10.0)
        called += coverage_process.run(steps, coverage_process.fidelity(10.0)).closed.steady != "steady"
    assert called >= 9


def test_the_figures_of_coverage_say_where_it_does_not_hold() -> None:
    run = script("coverage")
    one = {"n": 1000, "above": 5, "width": 30.0, "bias": 0.1, "seconds": 4000.0}
    totals = {
        "steady/4s": {**one, "held": 950, "labelled": 80},
        "heavy_tails/4s": {**one, "held": 880, "labelled": 0},
        "drift0.4/4s": {**one, "held": 100, "labelled": 990},
    }
    reported = run.failing(totals)
    assert len(reported) == 2
    assert reported[0].startswith("steady/4s")
    assert "88.0%" in reported[1]
    assert any("| drift0.4 |" in line and "99.0%" in line for line in run.table(totals))


@pytest.mark.parametrize("seconds", [120.0, 300.0, 1200.0, 3600.0])
def test_what_coverage_asks_about_encloses_the_windows_of_searches_of_minutes_to_an_hour(
    seconds: float,
) -> None:
    run = script("coverage")
    costs = Costs.of(Study(spec=search_world.spec(seconds=seconds)))
    for stage in (Stage.BASELINE, Stage.REFINE, Stage.CONFIRM):
        requested = costs.fidelity(stage, Config(), remaining_s=seconds, reserve_s=0.0)
        alike = [end for end in run.ENDS.values() if end[0] == requested.target_width]
        for found, at in ((requested.min_window_s, 1), (requested.max_window_s, 2)):
            ends = [end[at] for end in alike]
            assert 0.98 * min(ends) <= found <= max(ends)
    cases = {case for case, _ in run.units()}
    assert all(f"{kind}/{end}" in cases for kind in coverage_traces.KINDS for end in run.ENDS)


# Loss guard ----------------------------------------------------------------------------------------


def planted(delay: float, k: int) -> str:
    made = guard_traces.Simulated(random.Random(k))
    base = {s: made.run(s, 0.0, random.Random, rounding=False) for s in range(7)}
    own = {s: made.run(s, delay, random.Random) for s in range(6)}
    return judge(own, base, changes_rng_streams=False, effective_batch=32).verdict


def test_a_planted_delay_is_seen_and_rounding_is_not_taken_for_one() -> None:
    assert [planted(0.0, k) for k in range(8)].count("pass") >= 7
    assert [planted(0.2, k) for k in range(8)].count("pass") <= 1


def test_a_delay_planted_into_recorded_traces_is_as_long_as_it_says() -> None:
    made = guard_traces.Simulated(random.Random(1))
    made.batch_sd = made.seed_sd = 0.0
    kept = {s: made.run(s, 0.0, random.Random, rounding=False) for s in range(6)}
    script_ = guard_traces.Recorded("made", kept)
    late = script_.run(0, 0.1, random.Random, rounding=False)
    at = 15
    assert late[at].loss == pytest.approx(script_.level(at * 0.9), abs=0.01)
    assert late[at].loss > kept[0][at].loss


@pytest.mark.torch
def test_trainings_learn_and_their_harms_are_harms() -> None:
    trainings = pytest.importorskip("guard_trainings")
    for workload in trainings.WORKLOADS:
        plain = trainings.losses(workload, "none", 0)
        assert len(plain) == trainings.STEPS
        assert sum(plain[-20:]) < 0.95 * sum(plain[:20])
        assert trainings.losses(workload, "same", 0) == plain
        assert trainings.losses(workload, "none", 1) != plain
        frozen = trainings.losses(workload, "stale_weights", 0)
        assert sum(frozen[-20:]) > 1.05 * sum(plain[-20:])
    broken = trainings.losses("mlp", "fp16_overflow", 0)
    assert not math.isfinite(broken[-1])


def test_a_known_spread_is_the_one_that_runs_show() -> None:
    made = guard_traces.Simulated(random.Random(4))
    ends = [statistics.fmean(p.loss for p in made.run(s, 0.0, random.Random)[-7:]) for s in range(300)]
    assert statistics.stdev(ends) == pytest.approx(made.spread(), rel=0.2)


@pytest.mark.torch
def test_the_experiment_on_the_guard_counts_its_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = script("loss_guard")
    guard_runs = pytest.importorskip("guard_runs")
    kept = tmp_path / "trainings.jsonl"
    line = {"case": "mlp/stale_weights", "part": 0, **guard_runs.work("mlp/stale_weights", 0)}
    kept.write_text("{}\n" + json.dumps(line) + "\n")
    monkeypatch.setattr(guard_runs, "read", functools.partial(guard_runs.read, kept))
    sums = run.trained()["mlp/stale_weights"]
    assert sum(sums[f"{key}_end"] for key in ("pass", "unclear", "fail")) == 1
    assert sums["pass_end"] == 0
    assert sums["worse_sds"] > 1.0
    benign = {"pass_end": 10, "fail_end": 1, "n": 11, "cycles": 33, "worse_sds": 0.0}
    totals = {"mlp/same": benign, "mlp/frozen_first": sums}
    assert run.failing(totals) == ["mlp/same is accepted in 10 of 11 only"]
    assert any(row.startswith("| mlp/frozen_first | 1 |") for row in run.table(totals))


def test_recorded_runs_of_workloads_are_judged_from_every_seed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = script("loss_guard")
    draw = random.Random(11)

    def row(seed: int, level: float, **config: object) -> SimpleNamespace:
        shift, batch = random.Random(seed).gauss(0.0, 0.02), random.Random(seed + 1000)
        losses = [level + shift + 2.0 * 0.9**k + batch.gauss(0.0, 0.01) for k in range(40)]
        losses = [loss + draw.gauss(0.0, 1e-4) for loss in losses]
        return SimpleNamespace(
            config=Config(config),
            seed=seed,
            is_ok=True,
            effective_batch=32.0,
            loss_samples=[32 * k for k in range(40)],
            loss_values=losses,
            loss_t_s=[0.1 * k for k in range(40)],
        )

    rows = [row(seed, 0.3) for seed in range(20)]
    rows += [row(seed, 0.3, precision="bf16") for seed in range(20)]
    rows += [row(seed, 0.8, num_workers=2) for seed in range(20)]
    header = SimpleNamespace(workload=SimpleNamespace(name="digits"), space=[])
    table = SimpleNamespace(header=header, rows=rows)
    (tmp_path / "digits.jsonl").write_text("")
    monkeypatch.setattr(run.tables, "decode", lambda *_, **__: table)
    totals = run.on_workloads(tmp_path)
    assert totals["digits/bf16"]["pass_end"] == 20
    assert totals["digits/workers"]["fail_end"] == 20
    assert run.failing(totals) == ["digits/workers is accepted in 0 of 20 only"]


@pytest.mark.torch
def test_a_training_that_stopped_before_this_guard_can_decide_has_no_verdict_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, guard_runs = script("loss_guard"), pytest.importorskip("guard_runs")
    unclear = lambda *_, **__: SimpleNamespace(verdict="unclear", can_clear=True)  # noqa: E731
    for module in (run, guard_runs):
        monkeypatch.setattr(module, "judge", unclear)
    draw, kept = random.Random(3), tmp_path / "trainings.jsonl"

    def trained(case: str, cycles: int) -> dict[str, object]:
        base, own = (
            {s: [draw.random() for _ in range(8)] for s in side} for side in guard_runs.seeds(cycles)
        )
        return {"case": case, "part": 0, "base": base, "own": own}

    short, harm, whole = trained("mlp/workers", 3), trained("mlp/stale_weights", 6), trained("mlp/bf16", 12)
    lines = [{"identity": guard_runs.identity()}, short, harm, whole]
    kept.write_text("".join(json.dumps(part) + "\n" for part in lines))
    read = guard_runs.read
    monkeypatch.setattr(guard_runs, "read", lambda path=kept: read(path))

    totals = run.trained()
    assert totals["mlp/workers"].get("unclear_end", 0) == 0
    assert [totals[f"mlp/{change}"]["unclear_end"] for change in ("stale_weights", "bf16")] == [1, 1]
    assert [message.split(":")[0] for message in run.unfinished(totals)] == ["mlp/workers"]
    (row,) = (row for row in run.table(totals) if row.startswith("| mlp/workers | 0 |"))
    assert row.count("| - |") >= 1

    requested: list[str] = []
    monkeypatch.setattr(guard_runs, "units", lambda: [(part["case"], 0) for part in lines[1:]])
    monkeypatch.setattr(
        guard_runs, "work", lambda case, _: requested.append(case) or {k: whole[k] for k in ("base", "own")}
    )
    guard_runs.main(["--out", str(kept)])
    assert requested == ["mlp/workers"]
    assert run.unfinished(run.trained()) == []


@pytest.mark.parametrize("folder", ["claims", "coverage", "loss_guard"])
def test_the_sources_that_decide_are_there(folder: str) -> None:
    assert len(script(folder).identity()["sources"]) == 64


def test_the_sources_that_compare_losses_are_there() -> None:
    assert len(fastest.identity()["losses"]) == 64
