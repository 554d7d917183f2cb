"""The oracle's arithmetic: ranking, pairs and verdicts, without a process."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grid
import grid_facts
import oracle
import pytest
import timer
import whole

from autotune.export.best_config import core_changes, read_best, write_best
from autotune.model.change import Env, Patch
from autotune.model.config import Config
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.testing.table import Blocks, ProtocolPart, Table, TableHeader, TableRow, WorkloadPart

CONFIGS = (Config(), *(Config({"threads": n}) for n in range(1, 8)), Config({"compile_mode": "default"}))
HEADER = TableHeader(
    table="w/cpu",
    grid_sha256="",
    recorded="",
    device="",
    workload=WorkloadPart(name="w", script_sha256="", planned_steps=100, effective_batch=8),
    request=SpaceRequest(name="g"),
    facts=grid_facts.facts("photos_denoise"),
    space=(),
    configs=CONFIGS,
    protocol=ProtocolPart(
        fidelity=grid.Grid(workload="w", parts=(), seeds=(0,), window_s=4, sentinel_every=8).fidelity(),
        seeds=(0,),
        repeats=1,
    ),
)


def row(config: Config, rate: float, order: int, **more: Any) -> TableRow:
    blocks = Blocks(
        num_steps=(1, 1),
        num_samples=(8, 8),
        elapsed_s=(8 / rate, 8 / rate),
        aside_s=(0.0, 0.0),
        wait_s=(0.0, 0.0),
        run_delay_s=(None, None),
        flags=("", ""),
    )
    return TableRow(
        config=config,
        digest=config.digest,
        order=order,
        blocks=blocks,
        **{"repeat": 0, "compile_s": 0.0, **more},
    )


def table(*rows: TableRow, **changed: Any) -> Table:
    return Table(header=replace(HEADER, **changed), rows=rows)


# Ranking --------------------------------------------------------------------------------------


def test_configs_are_ranked_by_the_median_of_their_processes() -> None:
    rows = [
        *(row(CONFIGS[1], rate, n) for n, rate in enumerate((10, 90, 11))),
        *(row(CONFIGS[2], rate, n + 3) for n, rate in enumerate((20, 21, 22))),
        row(Config(), 5, 9),
    ]
    ranked = oracle.ranking(table(*rows))
    assert [(Config(e["config"]), e["median"]) for e in ranked] == [
        (CONFIGS[2], pytest.approx(21)),
        (CONFIGS[1], pytest.approx(11)),
        (Config(), pytest.approx(5)),
    ]
    assert [Config(e["config"]) for e in oracle.finalists(ranked)] == [CONFIGS[2], CONFIGS[1]]


def test_five_that_change_something_are_taken() -> None:
    rows = [row(config, 10 + n, n) for n, config in enumerate(CONFIGS[1:])]
    ranked = oracle.ranking(table(row(Config(), 99, 20), *rows))
    assert len(oracle.finalists(ranked)) == 5
    assert {} not in [e["config"] for e in oracle.finalists(ranked)]


def test_disturbed_runs_count_only_where_there_is_no_other() -> None:
    rows = [
        row(CONFIGS[1], 10, 0),
        row(CONFIGS[1], 99, 1, is_disturbed=True),
        row(CONFIGS[2], 7, 2, is_disturbed=True),
    ]
    assert [e["rates"] for e in oracle.ranking(table(*rows))] == [[pytest.approx(10)], [pytest.approx(7)]]


def test_sentinels_and_failures_do_not_rank() -> None:
    failed = replace(row(CONFIGS[1], 10, 0), kind="oom_host", blocks=Blocks())
    rows = [failed, row(CONFIGS[1], 12, 1), row(Config(), 50, 2, sentinel=True)]
    (entry,) = oracle.ranking(table(*rows))
    assert (entry["median"], entry["failed"]) == (pytest.approx(12), 1)


def test_a_compile_is_charged_to_the_planned_run() -> None:
    compiled = row(CONFIGS[-1], 100, 0, compile_s=8.0)
    # 800 samples: 8 s of training and 8 s of compiling.
    assert oracle.objective(compiled, HEADER) == pytest.approx(50)
    unknown = replace(HEADER, workload=replace(HEADER.workload, planned_steps=None))
    assert oracle.objective(compiled, unknown) == pytest.approx(100)
    steps = replace(HEADER, workload=replace(HEADER.workload, unit="steps/s"))
    assert oracle.planned_samples(steps) == 100
    assert oracle.planned_samples(HEADER) == 800


# Pairs ----------------------------------------------------------------------------------------


def test_every_arm_stands_in_every_place_and_orders_turn_round() -> None:
    arms = ["A", "b", "c", "d"]
    lines = [oracle.turned(arms, cycle) for cycle in range(8)]
    assert all(sorted(line) == sorted(arms) for line in lines)
    for place in range(4):
        assert {line[place] for line in lines[:4]} == set(arms)
    assert lines[4] != lines[0]
    assert arms == ["A", "b", "c", "d"]


def run(cycle: int, arm: str, rate: float, start_s: float = 0.0) -> dict[str, Any]:
    return {"cycle": cycle, "arm": arm, "samples_per_s": rate, "start_s": start_s}


def test_ratios_are_taken_within_whole_cycles() -> None:
    runs = [
        run(0, "oracle", 10),
        run(0, "search", 20),
        run(1, "oracle", 10),
        {"cycle": 1, "arm": "search", "failed": True},
    ]
    found = oracle.ratios(runs, "search", "oracle", lambda r: oracle.run_s(r, None))
    assert found == [pytest.approx(2.0)]


@pytest.mark.parametrize("arm", ["oracle", "search"])
def test_a_cycle_is_set_aside_by_what_others_used_whichever_run_it_was(arm: str) -> None:
    runs = [run(cycle, name, 10) for cycle in range(3) for name in ("oracle", "search")]
    for each in runs:
        each["foreign_cores"] = 0.3 if each["arm"] == arm and each["cycle"] == 1 else 0.02
    runs.append({"cycle": 2, "arm": "again", "samples_per_s": 10, "foreign_cores": None})
    assert oracle.disturbed(runs) == [1]
    assert len(oracle.ratios(runs, "search", "oracle", lambda r: oracle.run_s(r, None))) == 2


def remeasured(foreign: list[float], earlier: list[dict[str, Any]], most_cycles: int | None = None) -> Any:
    """An experiment that wanted two cycles of one finalist; `foreign` is what others used, run after run."""
    left = iter(foreign)
    one: Any = object.__new__(oracle.Experiment)
    one.options = SimpleNamespace(cycles=2, most_cycles=most_cycles)
    one.state = {"finalists": [{"config": {"threads": 1}}], "remeasured": earlier}
    one.script, one.work, one.table, one.samples = Path("w.py"), Path("work"), table(), None
    one.save, one.primed = lambda: None, []
    one.prime = one.primed.extend

    def measure(runs: list[dict[str, Any]], cycle: int, arm: str, _command: list[str]) -> None:
        runs.append(run(cycle, arm, 10 if arm == "A" else 20) | {"foreign_cores": next(left, 0.0)})

    one.measure = measure
    one.remeasure()
    return one


def test_a_disturbed_cycle_of_the_five_is_measured_again() -> None:
    found = remeasured([0.0, 0.3, 0.01], [])
    assert [each["cycle"] for each in found.state["remeasured"]] == [0, 0, 1, 1, 2, 2]
    assert found.state["remeasured_disturbed"] == [0]
    assert found.state["oracle"] == {
        "arm": "grid0",
        "config": {"threads": 1},
        "gain": found.state["gains"]["grid0"],
    }
    assert found.state["gains"]["grid0"]["n"] == 2
    assert found.primed == ["grid0"]


def test_no_oracle_is_named_where_others_used_the_machine_all_the_time() -> None:
    with pytest.raises(SystemExit, match="in 4 of 4 cycles"):
        remeasured([0.3] * 8, [])
    with pytest.raises(SystemExit, match="in 2 of 3 cycles"):
        remeasured([0.3] * 4, [], most_cycles=3)


def test_runs_of_an_earlier_sitting_count_but_for_what_failed_or_was_disturbed() -> None:
    earlier = [run(0, "A", 10), run(0, "grid0", 20) | {"foreign_cores": 0.3}, run(1, "A", 10)]
    earlier.append({"cycle": 1, "arm": "grid0", "failed": True})
    found = remeasured([], earlier)
    again = [(each["cycle"], each["arm"]) for each in found.state["remeasured"][3:]]
    assert again == [(1, "grid0"), (2, "grid0"), (2, "A")]


def test_a_cycle_counts_as_undisturbed_once_every_arm_had_its_turn() -> None:
    runs = [run(0, "A", 10), run(0, "grid0", 20), run(1, "A", 10), run(2, "A", 10)]
    runs.append({"cycle": 1, "arm": "grid0", "failed": True})
    assert oracle.undisturbed(runs, ["A", "grid0"]) == [0, 1]
    runs[0]["foreign_cores"] = 0.3
    assert oracle.undisturbed(runs, ["A", "grid0"]) == [1]


def compared(arms: tuple[float, float, float], *, searched: bool = True) -> Any:
    """An experiment with ten cycles of oracle, search and oracle again at these rates."""
    one: Any = object.__new__(oracle.Experiment)
    one.options, one.samples, one.save = SimpleNamespace(pairs=10), None, lambda: None
    names = ("oracle", "search", "again")
    pairs = [
        run(cycle, name, rate * (1 + 0.001 * (cycle % 3)))
        for cycle in range(10)
        for name, rate in zip(names, arms, strict=True)
    ]
    one.state = {"pairs": pairs, "oracle": {"config": {"threads": 1}}}
    if searched:
        one.state["search"] = {"exit": 0, "changed": {}}
    return one


def test_a_comparison_that_came_to_its_verdict_needs_no_answer_on_disk() -> None:
    """A clone has the pairs, and not the answer that they measured: that names places of a machine."""
    assert compared((10.0, 10.0, 10.0)).is_proved()
    assert compared((10.0, 8.0, 10.0)).is_proved()
    assert not compared((10.0, 10.0, 20.0)).is_proved(), "the oracle differs from itself"
    assert not compared((10.0, 10.0, 10.0), searched=False).is_proved()


def test_the_whole_run_is_what_counts_and_the_way_to_its_first_step_with_it() -> None:
    assert oracle.run_s(run(0, "a", 10, start_s=3.0), 100) == pytest.approx(13.0)
    assert oracle.run_s(run(0, "a", 10, start_s=3.0), None) == pytest.approx(0.1)
    assert oracle.run_s({"samples_per_s": 10}, 100) == pytest.approx(0.1)


def test_the_half_width_is_a_share_of_the_ratio() -> None:
    assert oracle.half_width(oracle.interval([1.0, 1.1, 0.9, 1.0])) == pytest.approx(0.13, abs=0.01)
    assert oracle.half_width(oracle.interval([1.0])) == math.inf
    assert oracle.half_width(None) == math.inf


def ratio(value: float, half: float) -> dict[str, Any]:
    return {"value": value, "low": value - half, "high": value + half, "n": 10}


ALIKE = ratio(1.0, 0.02)


@pytest.mark.parametrize(
    ("found", "same", "verdict"),
    [
        (ratio(0.99, 0.03), ALIKE, "pass"),
        (ratio(1.10, 0.03), ALIKE, "pass"),
        (ratio(0.95, 0.04), ALIKE, "pass"),
        (ratio(0.94, 0.03), ALIKE, "fail"),
        (ratio(0.80, 0.10), ALIKE, "fail"),  # wide, but all of it below
        (ratio(0.99, 0.08), ALIKE, "unresolved"),
        (ratio(0.93, 0.08), ALIKE, "unresolved"),
        (ratio(0.99, 0.03), ratio(1.05, 0.02), "unresolved"),  # equals differ on this machine
        (None, ALIKE, "unresolved"),
        (ratio(0.99, 0.03), None, "unresolved"),
        ({"value": 1.0, "low": None, "high": None, "n": 1}, ALIKE, "unresolved"),
    ],
)
def test_a_verdict_needs_a_narrow_interval_on_a_machine_that_is_even(
    found: Any, same: Any, verdict: str
) -> None:
    assert oracle.verdict(found, same) == verdict


@pytest.mark.parametrize(
    ("code", "found", "nothing"),
    [
        (1, ratio(0.99, 0.02), True),
        (1, ratio(0.97, 0.02), False),  # the oracle is clearly faster than the script, and it was missed
        (0, ratio(1.00, 0.02), False),
        (1, None, False),
    ],
)
def test_nothing_to_gain_needs_a_search_that_says_so_and_an_oracle_without_a_clear_gain(
    code: int, found: Any, nothing: bool
) -> None:
    assert oracle.nothing_to_gain(code, found) is nothing


# Carrying a configuration out -----------------------------------------------------------------


def test_a_config_of_the_grid_becomes_a_file_that_apply_takes(tmp_path: Any) -> None:
    config = Config({"precision": "bf16", "threads": 1})
    facts = grid_facts.facts("photos_denoise")
    changes, refusals = oracle.choose(config, facts, oracle.knobs_for(HEADER.request))
    assert refusals == ()
    spec = StudySpec(
        study_id="grid",
        label="grid-w",
        script=str(grid_facts.WORKLOADS / "photos_denoise.py"),
        args=(),
        cwd=str(grid_facts.WORKLOADS),
        python="python",
        space=HEADER.request,
        budget=Budget(seconds=0.0),
    )
    path = tmp_path / "grid0.yaml"
    write_best(path, Study(spec=spec, facts=facts), oracle.as_answer(config), lambda c: changes if c else ())
    name, pick = read_best(path).chosen()
    assert name == "best"
    found = {change.knob: (change.value, change.spelling) for change in core_changes(pick)}
    assert found == {"precision": ("bf16", Patch()), "threads": (1, Env("OMP_NUM_THREADS"))}


def test_one_table_is_taken_and_several_require_a_choice(tmp_path: Any) -> None:
    with pytest.raises(SystemExit, match="none"):
        oracle.one_table(tmp_path)
    (tmp_path / "cpu2.jsonl").touch()
    (tmp_path / "cpu2.1.jsonl").touch()  # an earlier one that --new has put aside
    assert oracle.one_table(tmp_path).name == "cpu2.jsonl"
    (tmp_path / "nvidia-h200.jsonl").touch()
    with pytest.raises(SystemExit, match="--table"):
        oracle.one_table(tmp_path)
    own = tmp_path / f"{oracle.file_name(oracle.host_facts())}.jsonl"
    own.touch()
    assert oracle.one_table(tmp_path) == own


# Trusting a grid and a stopwatch --------------------------------------------------------------


def test_an_oracle_needs_a_whole_and_committed_grid(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = oracle.device_name(oracle.host_facts())
    full = table(*(row(config, 10, n) for n, config in enumerate(CONFIGS)), device=here)
    monkeypatch.setattr(oracle.searching, "is_committed", lambda _path: True)
    with pytest.raises(SystemExit, match="at least 60"):
        oracle.check_table(full, tmp_path / "t.jsonl")
    monkeypatch.setattr(oracle, "LEAST_CONFIGS", len(CONFIGS))
    oracle.check_table(full, tmp_path / "t.jsonl")
    with pytest.raises(SystemExit, match="1 not recorded"):
        oracle.check_table(table(*full.rows[1:], device=here), tmp_path / "t.jsonl")
    with pytest.raises(SystemExit, match="recorded on another, this is"):
        oracle.check_table(table(*full.rows, device="another"), tmp_path / "t.jsonl")
    elsewhere = table(*full.rows, device=here, environment={"OMP_NUM_THREADS": "7"})
    with pytest.raises(SystemExit, match="OMP_NUM_THREADS=7"):
        oracle.check_table(elsewhere, tmp_path / "t.jsonl")
    monkeypatch.setattr(oracle.searching, "is_committed", lambda _path: False)
    with pytest.raises(SystemExit, match="not committed"):
        oracle.check_table(full, tmp_path / "t.jsonl")


@pytest.mark.parametrize("name", ["small_steps", "gpt2", "resnet50", "vit_b16"])
def test_a_grid_for_a_rented_device_may_be_smaller_and_its_script_is_found(name: str) -> None:
    assert oracle.least_configs(name) == oracle.LEAST_ON_DEVICE < oracle.LEAST_CONFIGS
    wanted = grid.read_grid(oracle.GRIDS / name / "grid.json").wanted()
    # Not every point is valid on every device.
    assert len({tuple(sorted(point.items())) for point in wanted}) >= 1.5 * oracle.LEAST_ON_DEVICE
    assert oracle.least_configs("photos_denoise") == oracle.LEAST_CONFIGS
    assert oracle.script_of(name).is_file()
    assert oracle.script_of("photos_denoise").is_file()


def stamps() -> Any:
    path = Path(oracle.__file__).parent / "stamps" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("stamps_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_recompile_is_charged_once_and_not_as_a_rate() -> None:
    works = [0.05] * 99 + [2.05]
    once_s = stamps().beyond(works)
    assert once_s == pytest.approx(2.0)
    figures = run(0, "oracle", 20.0, start_s=3.0) | {"once_s": once_s}
    assert oracle.run_s(figures, 2000) == pytest.approx(3.0 + 2.0 + 100.0)
    assert stamps().beyond([0.05, 0.06, 0.2]) == 0.0  # an uneven step is a step
    assert stamps().beyond([]) == 0.0


def test_what_others_used_meanwhile_stands_beside_a_run() -> None:
    before = {"at_s": 0.0, "own_s": 1.0, "busy_s": 100.0, "stalled_s": 5.0}
    after = {"at_s": 10.0, "own_s": 16.0, "busy_s": 120.0, "stalled_s": 6.0}
    assert timer.neighbours(before, after) == {"foreign_cores": 0.5, "pressure_frac": 0.1}
    unknown = {**before, "busy_s": None, "stalled_s": None}
    assert timer.neighbours(unknown, after) == {"foreign_cores": None, "pressure_frac": None}


LEAVES_A_WORKER = r"""
import os, subprocess, sys
works = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True)\ntime.sleep(60)"
worker = subprocess.Popen([sys.executable, "-c", works], stdout=subprocess.PIPE)
worker.stdout.readline()
os._exit(0)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
def test_a_worker_that_a_run_leaves_behind_is_none_of_the_others() -> None:
    before = timer.load()
    with timer.orphans_are_ours():
        process = subprocess.Popen([sys.executable, "-c", LEAVES_A_WORKER], start_new_session=True)
        try:
            process.wait(60)
        finally:
            timer.end_group(process)
    assert timer.load()["own_s"] - before["own_s"] >= 0.9


def event(stage: str, at: float, knobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stage": stage, "elapsed_s": at, "seconds": 10.0, "knobs": knobs, **more}


def test_a_timeline_reports_when_the_winner_was_seen_and_paired() -> None:
    winner = {"threads": 1}
    events = [
        event("baseline", 10, {}),
        event("start", 20, winner, failure="timeout"),
        event("refine", 30, winner),
        *(event("confirm", 40 + n, winner) for n in range(4)),
    ]
    reported = whole.winner_events(events, winner)
    assert reported["stages"]["confirm"] == {"trials": 4, "seconds": 40.0}
    assert reported["failures"] == {"timeout": 1}
    assert (reported["winner_first_seen_s"], reported["winner_third_pair_s"]) == (30, 42)
    assert whole.winner_events(events, {})["winner_first_seen_s"] is None


@pytest.mark.parametrize(
    ("left", "why"),
    [((), r"no best\.yaml"), (("best.yaml",), "left no journal")],
    ids=["nothing", "an answer"],
)
def test_an_interpreter_that_fails_is_no_search_that_found_nothing(
    left: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_words: list[str], **_more: Any) -> int:
        for name in left:
            (tmp_path / name).touch()
        return 1

    monkeypatch.setattr(whole.searching, "run_autotune", broken)
    with pytest.raises(SystemExit, match=why):
        whole.search("w", "1h", "inline", tmp_path)
    assert not (tmp_path / "search.json").exists()


def test_a_search_that_found_nothing_is_one_with_an_answer_and_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(_words: list[str], **_more: Any) -> int:
        (tmp_path / "home" / "studies" / "s").mkdir(parents=True)
        (tmp_path / "home" / "studies" / "s" / "journal.db").touch()
        (tmp_path / "best.yaml").touch()
        return 1

    monkeypatch.setattr(whole.searching, "run_autotune", searched)
    reported = whole.search("w", "1h", "inline", tmp_path)
    assert (reported["exit"], reported["resumed"]) == (1, False)
    assert whole.search("w", "1h", "inline", tmp_path) == reported


def test_an_ending_without_an_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exit code 3"):
        whole.searching.check_answer(3, tmp_path / "best.yaml")
    with pytest.raises(SystemExit, match="exit code 0 and left no"):
        whole.searching.check_answer(0, tmp_path / "best.yaml")


# Several workloads in one call ------------------------------------------------------------------


class Judged:
    """An experiment that is over at once: the workload is named after its verdict."""

    def __init__(self, name: str, options: Any) -> None:
        if name == "refused":
            raise SystemExit("it has no grid")
        self.state = {"verdict": name, "ratio": None, "identical": None, "budget": options.budget}

    def nothing(self) -> None:
        pass

    rank = remeasure = search = compare = is_proved = nothing


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "Experiment", Judged)
    for name in ("check_tree", "end_on_signals"):
        monkeypatch.setattr(oracle.searching, name, lambda: None)


@pytest.mark.usefixtures("judged")
def test_workloads_follow_one_another_and_the_worst_ending_is_the_whole_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert oracle.main(["pass"]) == 0
    assert oracle.main(["pass", "fail", "pass"]) == 1
    capsys.readouterr()
    assert oracle.main(["refused", "pass"]) == 1
    reported = capsys.readouterr()
    assert "refused: it has no grid" in reported.err
    assert "pass: no whole pair yet" in reported.out


@pytest.mark.usefixtures("judged")
def test_without_a_name_all_with_a_committed_grid_of_this_machine_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{oracle.file_name(oracle.host_facts())}.jsonl"
    monkeypatch.setattr(oracle, "GRIDS", tmp_path)
    monkeypatch.setattr(oracle.searching, "is_committed", lambda path: path.parent.name != "changed")
    with pytest.raises(SystemExit, match="no workload has a committed grid"):
        oracle.main([])
    for place in (f"pass/{own}", f"fail/{own}", f"changed/{own}", f"held_out/hidden/{own}", "other/x.jsonl"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    assert oracle.recorded() == ["fail", "pass"]
    assert oracle.main([]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["fail", "pass"]


@pytest.mark.usefixtures("judged")
def test_one_table_is_not_that_of_several_workloads() -> None:
    with pytest.raises(SystemExit, match="of one workload"):
        oracle.main(["pass", "fail", "--table", "t.jsonl"])
