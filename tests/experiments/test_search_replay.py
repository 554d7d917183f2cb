"""The proof's arithmetic: truth of a table, arrival, pairing, what may be opened; a search as a line."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import analyse
import pytest
import recorded_world
import rivals
import score
import synthetic
import worlds

from autotune.errors import UsageError
from autotune.model.config import Config
from autotune.model.measurement import Estimate
from autotune.search.feature_flags import DEFAULT
from autotune.testing import table as tables

FOLDER = Path(score.__file__).parent
A, B = Config({"threads": 1}), Config({"threads": 2})


def loaded() -> Any:
    """run.py, whose name others have as well."""
    made = importlib.util.spec_from_file_location("search_replay_run", FOLDER / "run.py")
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = loaded()
    for name in ("SPLIT", "FROZEN", "HELD_RUNS"):
        monkeypatch.setattr(module, name, tmp_path / getattr(module, name).name)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "GRIDS", tmp_path / "grids")
    monkeypatch.setattr(module, "code_sha256", lambda: "code")
    return module


def options(**more: Any) -> Namespace:
    plain = {
        "tables": [],
        "samplers": ["coordinate"],
        "seeds": 1,
        "budget": 100.0,
        "workers": 1,
        "most": 0,
        "jobs": 1,
        "until": math.inf,
        "out": None,
        "mixed": False,
    }
    return Namespace(**{**plain, **more})


def put(folder: Path, name: str) -> Path:
    """A recorded table as a file."""
    table = recorded_world.table()
    file = folder / "grids" / name / "cpu.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(tables.encode(line) for line in (table.header, *table.rows)))
    return file


# What is true ----------------------------------------------------------------------------------


def test_the_oracle_is_rated_by_runs_that_did_not_choose_it() -> None:
    # Each is fastest in one repeat by luck alone; none is any better.
    lucky = {
        Config(): {0: 0.0, 1: 0.0, 2: 0.0},
        A: {0: 0.3, 1: 0.0, 2: 0.0},
        B: {0: 0.0, 1: 0.3, 2: 0.0},
    }
    truth = score.Truth.by(lucky)
    assert max(truth.rates.values()) == pytest.approx(math.exp(0.1))
    assert truth.oracle_rate == pytest.approx(1.0)
    assert truth.quality(A) == 1.0


def test_a_config_that_is_really_faster_is_the_oracle() -> None:
    truth = score.Truth.by({Config(): {0: 0.0, 1: 0.0}, A: {0: 0.5, 1: 0.52}, B: {0: 0.2, 1: 0.2}})
    assert truth.oracle == A
    assert truth.oracle_rate == pytest.approx(math.exp(0.51))
    assert truth.quality(B) == pytest.approx(math.exp(0.2 - 0.51))
    assert truth.quality(Config({"threads": 3})) == 0.0


def test_drift_between_repeats_is_taken_out() -> None:
    table = recorded_world.table()
    slower = [
        recorded_world.row(c, 2, n, charged_s=20.0, produced_frac=0.5)
        for n, c in enumerate(recorded_world.CONFIGS)
    ]
    rows = (*(r for r in table.rows if r.repeat != 2), *slower)
    plain, drifted = score.Truth.of(table), score.Truth.of(recorded_world.table(*rows))
    for config in recorded_world.CONFIGS:
        ratio = drifted.rates[config] / drifted.base
        assert ratio == pytest.approx(plain.rates[config] / plain.base, rel=0.001)


def test_what_failed_in_most_of_its_runs_is_not_feasible() -> None:
    best = recorded_world.CONFIGS[-1]
    table = recorded_world.table()
    broken = [recorded_world.failed(best, r, 90, "crash_exit") for r in range(3)]
    rest = [r for r in table.rows if r.config != best]
    truth = score.Truth.of(recorded_world.table(*rest, *broken))
    assert best not in truth.rates
    assert truth.quality(best) == 0.0


def test_the_front_is_known_as_far_as_what_was_measured_dominates_it() -> None:
    rates = {Config(): 1.0, A: 2.0, B: 3.0}
    truth = score.Truth(rates, B, 3.0, 1.0, peaks={Config(): 5.0, A: 2.0, B: 10.0})
    # The largest peak spares nothing; A dominates the unchanged script.
    assert truth.dominated([A, B]) == pytest.approx(1.0)
    assert truth.dominated([Config()]) == pytest.approx(1.0 * 0.5 / (2.0 * 0.8))
    assert truth.dominated([B]) == 0.0
    assert score.Truth(rates, B, 3.0, 1.0).dominated([A]) is None
    assert [score.front_regret_at([(10, 0.25), (20, 1.0)], t) for t in (5, 10, 25)] == [1.0, 0.75, 0.0]


# When it arrived -------------------------------------------------------------------------------


def test_arrival_is_when_it_stays_within_and_trial_seconds_are_counted() -> None:
    points = [(10, 12, 0.5, 0.5), (20, 25, 0.99, 1.0), (30, 40, 0.9, 1.0), (50, 70, 0.985, 1.0)]
    assert score.reached(points, 2) == (50, 70)
    assert score.reached(points, 1) is None
    assert score.reached(points, 2, column=3) == (20, 25)
    assert [score.regret_at(points, t) for t in (5, 25, 39, 1000)] == pytest.approx([1.0, 0.01, 0.01, 0.015])


def line(table: str, sampler: str, seed: int, at: float | None, **more: Any) -> dict[str, Any]:
    arrived = {"5": [at, at], "2": [at, at], "1": None} if at is not None else dict.fromkeys("521")
    return {
        "set": "synthetic",
        "table": table,
        "sampler": sampler,
        "seed": seed,
        "workers": 1,
        "budget_s": 1000.0,
        "code": "c",
        "within": {"by_model": arrived, "by_reading": arrived},
        "curve": [[5.0, 5.0, 0.5, 0.5], [at or 9.0, at or 9.0, 0.99, 0.99]],
        "failures": {"oom_host": 1},
        "trial_s": 900.0,
        "answer": {"is_better": True, "false_win": False, "covered": True},
        **more,
    }


def test_searches_are_paired_by_table_and_seed_and_one_that_never_arrives_took_all_its_budget() -> None:
    lines = [line("w", "staged", 0, 100), line("w", "tpe", 0, 400), line("w", "tpe", 1, 50)]
    lines += [line("v", "staged", 0, 100), line("v", "tpe", 0, None)]
    found = analyse.paired(lines, "tpe", 2, "by_model")
    assert {name: [math.exp(x) for x in logs] for name, logs in found.items()} == {
        "w": [pytest.approx(4.0)],
        "v": [pytest.approx(10.0)],
    }
    value, low, high = analyse.interval(found)  # type: ignore[misc]
    assert value == pytest.approx(math.sqrt(40))
    assert low == pytest.approx(4.0)
    assert high == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("rival_s", "failures", "met"), [(400, 1, True), (250, 1, False), (400, 4, False), (50, 0, False)]
)
def test_the_bar_is_against_the_best_rival_and_failures_count(
    rival_s: float, failures: int, met: bool
) -> None:
    lines = []
    for table in "uvw":
        lines.append(line(table, "staged", 0, 100, failures={"crash_exit": failures}))
        lines += [line(table, "tpe", 0, rival_s), line(table, "random", 0, None)]
    found, sentence = analyse.verdict(lines)
    assert found is met
    assert "tpe" in sentence
    assert ("is met" in sentence) is met


@pytest.mark.parametrize("rule", ["by_model", "by_reading"])
def test_the_bar_holds_by_both_rules_or_not_at_all(rule: str) -> None:
    """Neither a way to choose what to confirm nor one to read figures may decide it alone."""
    lines = []
    for table in "uvw":
        lines += [line(table, "staged", 0, 100), line(table, "tpe", 0, 400)]
        sooner = {"5": [150, 150], "2": [150, 150], "1": None}
        lines[-1]["within"] = {**lines[-1]["within"], rule: sooner}
    met, sentence = analyse.verdict(lines)
    assert not met
    assert "4.00 [4.00, 4.00] (against tpe)" in sentence
    assert "1.50 [1.50, 1.50] (against tpe)" in sentence


def test_each_rule_has_the_rival_that_is_best_by_it() -> None:
    lines = []
    for table in "uvw":
        lines += [line(table, s, 0, at) for s, at in (("staged", 100), ("tpe", 400), ("random", 500))]
        sooner = {"5": [320, 320], "2": [320, 320], "1": None}
        lines[-1]["within"] = {**lines[-1]["within"], "by_reading": sooner}
    met, sentence = analyse.verdict(lines)
    assert met
    assert "confirm 4.00 [4.00, 4.00] (against tpe)" in sentence
    assert "for each 3.20 [3.20, 3.20] (against random)" in sentence
    assert sentence.endswith("3.20 [3.20, 3.20] (against random).")


def test_the_planner_without_a_part_stands_beside_it_and_is_no_rival() -> None:
    lines = []
    for table in "uvw":
        lines += [line(table, "staged", 0, 100), line(table, "staged without all", 0, 50)]
        lines.append(line(table, "tpe", 0, 400))
    met, sentence = analyse.verdict(lines)
    assert met
    assert "tpe" in sentence
    assert [row[0] for row in analyse.ratio_rows(lines, "by_model")] == ["staged without all", "tpe"]


def test_all_means_together_are_judged_beside_the_planner_alone_and_forks_make_no_rival() -> None:
    lines = [line("w", "staged", s, 200) for s in range(3)]
    lines += [line("w", analyse.ALL_MEANS, s, 50) for s in range(3)]
    lines += [line("w", "tpe", s, 400) for s in range(3)] + [
        line("w", "tpe forked", s, 100) for s in range(3)
    ]
    assert "2.00 [2.00, 2.00] (against tpe)" in analyse.verdict(lines)[1]
    met, sentence = analyse.verdict(lines, analyse.ALL_MEANS)
    assert met
    assert "8.00 [8.00, 8.00] (against tpe)" in sentence
    rows = {row[0]: row for row in analyse.threshold_rows(lines, analyse.ALL_MEANS)}
    assert rows["tpe forked"][3].startswith("2.00")
    assert rows["staged"][3].startswith("4.00")
    assert "## All means together" in analyse.report(lines)
    assert "## All means" not in analyse.report([x for x in lines if x["sampler"] != analyse.ALL_MEANS])


def test_what_a_fork_starts_in_is_what_was_measured_of_that_workload(tmp_path: Path) -> None:
    def rows(*found: tuple[str, str, float]) -> Path:
        file = tmp_path / "rows.jsonl"
        plain = {"workload": "w", "kind": "ok", "compile": ""}
        made = [{**plain, "arm": arm, "start": start, "startup_s": s} for arm, start, s in found]
        file.write_text("".join(json.dumps(row) + "\n" for row in made))
        return file

    cold = [("cold", "cold", 4.0), ("again", "cold", 4.0)]
    assert worlds.forked_start("w", [rows(*cold, ("fork", "fork", 1.0), ("fork", "fork", 1.2))]) == 0.275
    assert worlds.forked_start("other", [rows(*cold, ("fork", "fork", 1.0))]) == 1.0
    refused = rows(*cold, ("fork", "fork", 1.0), ("fork", "cold", 4.0))
    assert worlds.forked_start("w", [refused]) == 1.0


def test_forks_make_a_search_cheaper_and_its_line_says_by_what(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "seen")
    monkeypatch.setattr(worlds, "forked_start", lambda _workload: 0.1)
    run.run("develop", options(samplers=["tpe", "tpe forked"], budget=300.0))
    found = [json.loads(text) for text in (tmp_path / "develop.jsonl").read_text().splitlines()]
    by_name = {x["sampler"]: x for x in found}
    assert by_name["tpe forked"]["forked_start"] == 0.1
    assert "forked_start" not in by_name["tpe"]
    seconds = {name: x["trial_s"] / x["trials"] for name, x in by_name.items()}
    assert seconds["tpe forked"] < seconds["tpe"]


def test_a_rival_that_has_not_run_everywhere_is_not_the_best_of_them() -> None:
    lines = [line(t, s, 0, at) for t in "uv" for s, at in (("staged", 100), ("tpe", 400))]
    lines.append(line("u", "gp", 0, 10))
    assert "4.00 [4.00, 4.00] (against tpe)" in analyse.verdict(lines)[1]


def test_made_up_tables_settle_nothing_and_the_report_says_so() -> None:
    lines = [line(t, s, 0, 100 + 9 * n) for t in "uv" for n, s in enumerate(("staged", "tpe"))]
    text = analyse.report([*lines, line("u", "tpe", 1, 5)])
    assert "not every sampler has that seed yet: 1." in text
    assert "prove nothing" in text
    assert "settles nothing" in text
    assert "| tpe |" in text


def test_the_slow_ones_may_have_fewer_seeds_than_all_others() -> None:
    lines = [line("u", s, seed, 100) for s in ("staged", "tpe") for seed in range(2)]
    slow = line("u", analyse.SLOW[0], 0, 50)
    assert analyse.complete([*lines, slow]) == [*lines, slow]
    assert analyse.complete([*lines, slow, line("u", "tpe", 2, 7)]) == [*lines, slow]


def test_the_table_of_rivals_takes_the_sooner_rule_for_them_and_ours_for_our_own_parts() -> None:
    lines = []
    for table in "uvw":
        lines += [line(table, "staged", 0, 100), line(table, "tpe", 0, 400)]
        lines.append(line(table, "staged without all", 0, 400))
        sooner = {"5": [150, 150], "2": None, "1": None}
        for other in lines[-2:]:
            other["within"] = {**other["within"], "by_reading": sooner}
    rows = {row[0]: row for row in analyse.threshold_rows(lines)}
    assert rows["tpe"][1:4] == [3, "1.50 [1.50, 1.50], 100%", "4.00 [4.00, 4.00], 100%"]
    assert rows["staged without all"][2] == "4.00 [4.00, 4.00], 100%"
    assert rows["staged"][2:5] == ["1, 100%", "1, 100%", "1, 0%"]


def test_adverse_variants_are_distinguished_and_tables_are_described() -> None:
    noise = {"repeats": 1, "own_runs": 11, "own_sd": 0.05, "within": {"5": 9, "2": 3, "1": 2}}
    more = {"set": "adverse", "noise": noise, "configs": 70, "oracle_speedup": 1.5}
    lines = [
        line(f"u+{variant}/cpu", sampler, 0, at, **more)
        for variant, at in (("inverted", 100), ("best-moved", 200))
        for sampler in ("staged", "tpe")
    ]
    text = analyse.report(lines)
    assert "| inverted | tpe | 1.00 [1.00, 1.00], 100% (ours 100%) |" in text
    assert "| u+best-moved | 70 | 1 | 5.0% (11 runs) | 1.50 | 9, 3, 2 |" in text


def test_a_planner_of_before_is_held_beside_on_the_searches_that_both_have() -> None:
    def answered(made: dict[str, Any], *, proved: bool) -> dict[str, Any]:
        answer = {"is_better": proved, "covered": proved or None, "false_win": False}
        return {**made, "answer": answer}

    now = [answered(line(table, "staged", 0, 100), proved=True) for table in "uvw"]
    before = [answered({**line(t, "staged", 0, 200), "code": "old"}, proved=t == "u") for t in "uvwx"]
    reported = analyse.beside([*now, line("u", "tpe", 0, 5)], before)
    assert "3 pairs" in reported
    assert "| staged before | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00]" in reported
    assert "| staged | 3 | 0 | 3 of 3 |" in reported
    assert "| staged before | 1 | 0 | 1 of 1 |" in reported
    with pytest.raises(SystemExit, match="no search is in both"):
        analyse.beside(now, [{**x, "seed": 7} for x in before])


def test_several_workers_are_reported_on_the_clock_beside_what_they_spent() -> None:
    lines = []
    for sampler, clock_s, spent_s in (("staged", 50, 200), ("tpe", 80, 320)):
        at = {"5": [clock_s, spent_s], "2": None, "1": None}
        within = {"by_model": at, "by_reading": at}
        lines.append(line("u", sampler, 0, 100, set="parallel", workers=4, within=within))
    assert [row[:5] for row in analyse.parallel_rows(lines)] == [
        [4, "staged", 1, "50 s, 200 s (100%)", "1000 s, 4000 s (0%)"],
        [4, "tpe", 1, "80 s, 320 s (100%)", "1000 s, 4000 s (0%)"],
    ]
    assert "## By workers" in analyse.report(lines)


def test_what_a_file_shows_is_written_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Path] = []
    monkeypatch.setattr(analyse, "plot", lambda lines, path: drawn.append(path))
    path = tmp_path / "synthetic.jsonl"
    analyse.write(path)
    assert not list(tmp_path.iterdir())
    lines = [line("u", s, 0, 100) for s in ("staged", "tpe")]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    analyse.write(path)
    assert path.with_suffix(".md").read_text() == analyse.report(lines)
    assert drawn == [path.with_suffix(".svg")]


def test_a_search_after_another_is_reported_by_that_one_alone(run: Any, tmp_path: Path) -> None:
    put(tmp_path, "u")
    wanted = options(samplers=["staged", "staged after itself"], tables=["u"], budget=300.0)
    lines = [json.loads(line) for line in run.run("transfer", wanted).read_text().splitlines()]
    assert [x["sampler"] for x in lines] == wanted.samplers
    assert "told" not in lines[0]
    assert lines[1]["told"][0].startswith("start points from 1 earlier study of this script (u/cpu)")


@pytest.mark.parametrize("label", ["staged after nothing", "tpe after itself"])
def test_what_comes_after_what_is_known_by_name(run: Any, label: str) -> None:
    assert run.meant_by("staged after lies") == ("staged", DEFAULT)
    with pytest.raises(UsageError):
        run.meant_by(label)


# What may be opened ----------------------------------------------------------------------------


def test_held_out_tables_are_hashed_and_left_out_of_development(run: Any, tmp_path: Path) -> None:
    seen, held = put(tmp_path, "seen"), put(tmp_path, "held")
    held.write_bytes(held.read_bytes() + b"\n")
    run.hold([f"held={held}"])
    assert run.develop_files() == [seen]
    # Nor under another name.
    (tmp_path / "grids" / "copy.d").mkdir()
    (tmp_path / "grids" / "copy.d" / "x.jsonl").write_bytes(held.read_bytes())
    assert run.develop_files() == [seen]
    held.write_bytes(b"other")
    with pytest.raises(UsageError, match="held out already"):
        run.hold([f"held={held}"])


def test_the_held_out_run_wants_everything_as_it_was_frozen_and_is_noted(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, "held")
    with pytest.raises(UsageError, match="no table is held out"):
        run.freeze(options())
    run.hold([f"held={file}"])
    with pytest.raises(UsageError, match="nothing is frozen"):
        run.held_out(options())
    run.freeze(options())
    with pytest.raises(UsageError, match="samplers"):
        run.held_out(options(samplers=["tpe"]))
    assert not run.HELD_RUNS.exists()
    assert run.held_out(options()) == [file]
    assert len(run.HELD_RUNS.read_text().splitlines()) == 1
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="other bytes"):
        run.held_out(options())
    monkeypatch.setattr(run, "code_sha256", lambda: "later")
    with pytest.raises(UsageError, match="code"):
        run.held_out(options())


@pytest.mark.parametrize("given", [{"tables": ["held"]}, {"out": Path("x.jsonl")}, {"mixed": True}])
def test_of_the_held_out_run_nothing_is_chosen(run: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    run.hold([f"held={put(tmp_path, 'held')}"])
    run.freeze(options())
    with pytest.raises(UsageError, match=f"no --{next(iter(given))}"):
        run.run("held-out", options(**given))
    assert not run.HELD_RUNS.exists()


def test_whatever_decides_a_replay_is_in_the_hash_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = loaded()
    here = tmp_path / "experiments" / "search_replay"
    files = [here / "analyse.py", *(tmp_path / "autotune" / f / "x.py" for f in ("apply", "knobs", "store"))]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "HERE", here)
    seen = [module.code_sha256()]
    assert module.code_sha256() == seen[0]
    for file in files:
        file.write_text("x = 2\n")
        seen.append(module.code_sha256())
    for library in ("optuna", "numpy"):
        versions = {library: "0.1"}
        monkeypatch.setattr(module, "_version", lambda name, known=versions: known.get(name, "1"))
        seen.append(module.code_sha256())
    assert len(set(seen)) == len(seen)


def test_a_replayed_search_meets_the_machine_of_its_world(run: Any) -> None:
    made = run.worlds.world(recorded_world.table())
    key = {"sampler": "staged", "seed": 0, "workers": 1, "budget_s": 150.0}
    steady, changing = run.one(made, key), run.one(replace(made, drift=(0.2, 1.0)), key)
    assert steady["curve"] != changing["curve"]
    assert run.one(replace(made, drift=(0.2, 1.0)), key)["curve"] == changing["curve"]


def test_there_is_no_verdict_before_every_search_of_the_frozen_run_is_there(run: Any, tmp_path: Path) -> None:
    run.hold([f"held={put(tmp_path, 'held')}"])
    (entry,) = run.split().values()
    same = {"set": "held-out", "table_sha256": entry["sha256"], "code": "code"}
    lines = [
        line("held/cpu", sampler, seed, 100 if sampler == "staged" else 400, **same)
        for sampler in ("staged", "tpe")
        for seed in range(2)
    ]
    assert analyse.report(lines, run.FROZEN) == "No verdict: nothing is frozen.\n"
    run.freeze(options(samplers=["staged", "tpe"], seeds=2, budget=1000.0))
    assert "is met" in analyse.report(lines, run.FROZEN)
    for part in (lines[:-1], [*lines[:-1], {**lines[-1], "code": "other"}]):
        assert (
            analyse.report(part, run.FROZEN) == "No verdict: 1 of 4 searches of the frozen run are missing.\n"
        )


def test_of_a_held_out_run_that_is_not_whole_nothing_is_drawn_or_reported(run: Any, tmp_path: Path) -> None:
    run.hold([f"held={put(tmp_path, 'held')}"])
    (entry,) = run.split().values()
    run.freeze(options(samplers=["staged", "tpe"], seeds=1, budget=1000.0))
    same = {"set": "held-out", "table_sha256": entry["sha256"], "code": "code"}
    both = [line("held/cpu", name, 0, 100, **same) for name in ("staged", "tpe")]
    path = tmp_path / "held.jsonl"
    path.write_text(json.dumps(both[0]) + "\n")
    analyse.write(path, run.FROZEN)
    assert not path.with_suffix(".svg").exists()
    assert "100" not in run.reported(both[0])
    assert "100" in run.reported({**both[0], "set": "develop"})
    path.write_text("".join(json.dumps(x) + "\n" for x in both))
    analyse.write(path, run.FROZEN)
    assert path.with_suffix(".svg").exists()


def test_held_out_tables_are_opened_after_the_whole_run_and_never_held_out_again(
    run: Any, tmp_path: Path
) -> None:
    seen, held = put(tmp_path, "seen"), put(tmp_path, "held")
    held.write_bytes(held.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="no table is held out"):
        run.open_held_out()
    run.hold([f"held={held}"])
    with pytest.raises(UsageError, match="not whole"):
        run.open_held_out()
    run.freeze(options(samplers=["staged", "tpe"]))
    (entry,) = run.split().values()
    same = {"set": "held-out", "table_sha256": entry["sha256"], "code": "code", "budget_s": 100.0}
    both = [line("held/cpu", name, 0, 50, **same) for name in ("staged", "tpe")]
    file = tmp_path / "held-out-code.jsonl"
    file.write_text(json.dumps(both[0]) + "\n")
    with pytest.raises(UsageError, match="not whole"):
        run.open_held_out()
    assert run.develop_files() == [seen]
    file.write_text("".join(json.dumps(x) + "\n" for x in both))
    run.open_held_out()
    assert run.develop_files() == [seen, held]
    assert run.split() == {}
    with pytest.raises(UsageError, match="has been looked at"):
        run.hold([f"another={held}"])


def test_a_table_that_is_not_there_is_refused_by_its_name(run: Any, tmp_path: Path) -> None:
    put(tmp_path, "seen")
    with pytest.raises(UsageError, match="no table sean"):
        run.run("develop", options(tables=["sean"]))
    run.run("develop", options(tables=["seen/cpu"]))
    assert len((tmp_path / "develop.jsonl").read_text().splitlines()) == 1


def test_what_an_answer_claims_over_the_run_has_the_compile_added_to_both_ends() -> None:
    config = Config({"threads": 1})
    truth = SimpleNamespace(rates={config: 3.9}, base=1.0)
    speedup = Estimate(value=10.0, low=8.0, high=12.5, n=5, unit="ratio")

    def claimed(over_run: float | None) -> dict[str, Any]:
        best = SimpleNamespace(config=config, speedup=speedup, over_run=over_run)
        return score.judged(truth, SimpleNamespace(best=best, is_better=True))

    assert claimed(None)["over_run"] == [8.0, 12.5]
    assert claimed(None)["covered"] is False
    # A tenth of the run is training then, and 0.15 of it compiling.
    assert claimed(4.0)["over_run"] == pytest.approx([1 / (1 / 8 + 0.15), 1 / (1 / 12.5 + 0.15)], abs=1e-5)
    assert claimed(4.0)["covered"] is True


def test_lines_of_one_table_that_are_judged_by_two_truths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    def judged(noise: float, seed: int) -> dict[str, Any]:
        made = line("a/cpu", "staged", seed, 100)
        return {**made, "noise": {"sizes": {"noise": noise}}}

    def written(*lines: dict[str, Any]) -> None:
        path.write_text("".join(json.dumps(x) + "\n" for x in lines))

    written(judged(0.05, 0), judged(0.05 + 1e-6, 1))
    assert len(analyse.read(path)) == 2
    written(judged(0.05, 0), judged(0.051, 1))
    with pytest.raises(SystemExit, match="two different truths"):
        analyse.read(path)


def test_a_run_goes_on_where_it_stopped_and_sets_are_not_mixed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "seen")
    run.run("develop", options(seeds=2, most=1))
    first = (tmp_path / "develop.jsonl").read_text()
    run.run("develop", options(seeds=2))
    both = (tmp_path / "develop.jsonl").read_text()
    assert both.startswith(first)
    found = [json.loads(text) for text in both.splitlines()]
    assert [(x["table"], x["seed"]) for x in found] == [("seen/cpu", 0), ("seen/cpu", 1)]
    assert found[0]["oracle_speedup"] > 1.2
    assert found[0]["curve"][-1][0] <= 100.0
    run.run("develop", options(seeds=2))
    assert (tmp_path / "develop.jsonl").read_text() == both
    with pytest.raises(UsageError, match="another set"):
        run.run("synthetic", options(out=tmp_path / "develop.jsonl"))
    monkeypatch.setattr(run, "code_sha256", lambda: "later")
    with pytest.raises(UsageError, match="other code"):
        run.run("develop", options())


def test_two_searches_at_once_are_the_same_searches(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, run.__name__, run)
    put(tmp_path, "seen")
    found = []
    for jobs in (1, 2):
        path = run.run("develop", options(seeds=3, jobs=jobs, out=tmp_path / f"{jobs}.jsonl"))
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        found.append({x["seed"]: {**x, "planning_s": 0} for x in lines})
    assert sorted(found[0]) == [0, 1, 2]
    assert found[0] == found[1]
    path = run.run("develop", options(jobs=2, until=0.0, out=tmp_path / "none.jsonl"))
    assert not path.exists()


def test_a_label_says_which_parts_of_the_planner_are_left_out() -> None:
    module = loaded()
    assert module.meant_by("staged") == ("staged", DEFAULT)
    less = module.meant_by("staged without focuses+free_draws")
    assert less == ("staged", DEFAULT.put("focuses", "free_draws", present=False))
    assert module.meant_by("staged with all") == ("staged", DEFAULT.put("all", present=True))
    assert module.meant_by("staged forked") == ("staged", DEFAULT)
    assert module.meant_by("tpe forked") == ("tpe", DEFAULT)
    assert module.means_of("staged without all forked") == ("staged without all", True)
    wrong = (
        "stage",
        "tpe without all",
        "staged without luck",
        "staged live",
        "asha forked",
        "forked",
        "live",
    )
    for label in wrong:
        with pytest.raises(UsageError):
            module.meant_by(label)


def test_a_search_with_parts_left_out_is_another_line(run: Any, tmp_path: Path) -> None:
    put(tmp_path, "seen")
    run.run("develop", options(samplers=["staged without all"]))
    (found,) = [json.loads(text) for text in (tmp_path / "develop.jsonl").read_text().splitlines()]
    assert found["sampler"] == "staged without all"
    assert found["trials"] > 2


def test_a_label_names_a_sampler_a_rival_or_the_planner_without_a_part() -> None:
    module = loaded()
    assert set(module.EVERYBODY) == {*module.SAMPLERS, *rivals.RIVALS}
    assert not set(module.SAMPLERS) & set(rivals.RIVALS)
    for label in (*module.EVERYBODY, *module.ABLATIONS, *module.ADVERSE):
        module.meant_by(label)
    assert module.meant_by("asha") == ("asha", DEFAULT)
    assert {parts for _, parts in map(module.meant_by, module.ABLATIONS[1:])}.isdisjoint({DEFAULT})


def test_a_bare_rival_has_one_word_and_makes_no_claim(run: Any, tmp_path: Path) -> None:
    put(tmp_path, "seen")
    run.run("develop", options(samplers=["asha"]))
    (found,) = [json.loads(text) for text in (tmp_path / "develop.jsonl").read_text().splitlines()]
    assert found["within"]["by_model"] == found["within"]["by_reading"]
    assert found["answer"] == {"config": None}
    assert found["trials"] > 2
    assert found["noise"]["repeats"] == 3


def test_nothing_is_begun_after_the_limit(run: Any, tmp_path: Path) -> None:
    put(tmp_path, "seen")
    path = run.run("develop", options(until=0.0))
    assert path == tmp_path / "develop.jsonl"
    assert not path.exists()


def test_everything_on_open_tables_is_run_seed_by_seed_into_files_of_their_own(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "seen")
    inverted = worlds.VARIANTS["inverted"]
    monkeypatch.setattr(worlds, "VARIANTS", {"inverted": inverted})
    monkeypatch.setattr(run, "WORKERS", (4,))
    paths = run.run_all(options(samplers=["expert"], seeds=2))
    assert [path.name for path in paths] == [f"{kind}.jsonl" for kind in run.ALL]
    found = [json.loads(text) for path in paths for text in path.read_text().splitlines()]
    assert [(x["set"], x["table"], x["seed"]) for x in found] == [
        (kind, table, seed)
        for kind, table in (
            ("develop", "seen/cpu"),
            ("ablations", "seen/cpu"),
            ("adverse", "seen+inverted/cpu"),
            ("parallel", "seen/cpu"),
        )
        for seed in range(2)
    ]
    assert {analyse.workload(x) for x in found} == {"seen", "seen+inverted"}
    assert {x["workers"] for x in found if x["set"] == "parallel"} == {4}


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_a_limit_is_reported_in_seconds_minutes_or_hours(text: str, value: float) -> None:
    assert loaded().seconds(text) == value


# Made-up tables --------------------------------------------------------------------------------


def test_a_made_up_table_is_named_so_is_the_same_every_time_and_reads_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(synthetic, "MOST_CONFIGS", 60)
    made = synthetic.table("wrong-prior-0")
    assert made == synthetic.table("wrong-prior-0")
    assert made.header.table == "synthetic/wrong-prior-0"
    assert made.header.device == "synthetic"
    data = b"".join(tables.encode(row) for row in (made.header, *made.rows[:20]))
    assert tables.decode(data).rows == made.rows[:20]
    kinds = {row.kind for row in made.rows}
    assert {"ok", "crash_exit", "timeout_progress"} <= kinds
    assert len(made.header.configs) == 61


def test_interactions_are_there_where_they_are_reported_to_be() -> None:
    world = synthetic._World(synthetic.KINDS["interactions"], "interactions-0")
    base, bf16, layout, both = (
        world.step_s(Config(c))[0]
        for c in (
            {},
            {"precision": "bf16"},
            {"channels_last": True},
            {"precision": "bf16", "channels_last": True},
        )
    )
    assert min(bf16, layout) > base
    assert both < base / 1.2
