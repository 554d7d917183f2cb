"""The experiment on short searches: plan, journal figures, gains, bars and timing; no search is run."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import recorded_world

from autotune.answer.pick import answer_or_none
from autotune.driver.result import changes_of
from autotune.export.best_config import build_best, read_best
from autotune.knobs.registry import builtin
from autotune.model.wire import to_wire
from autotune.testing.replay import replay

HERE = Path(__file__).resolve().parents[2] / "experiments" / "first_answer"
sys.path[:0] = [str(HERE)]

import first_answer_figures as figures  # noqa: E402 (needs the path set above)
import first_answer_scripts as scripts  # noqa: E402 (needs the path set above)
import first_answer_timing as timing  # noqa: E402 (needs the path set above)
import timer  # noqa: E402 (needs the path set above)

_SPEC = importlib.util.spec_from_file_location("first_answer_run", HERE / "run.py")
assert _SPEC is not None
assert _SPEC.loader is not None
RUN: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)

SCRIPTS = scripts.load()
FAST = 'abc {"precision": "bf16"}'
SLOW = 'abc {"threads": 1}'


def trial(number: int, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    measured = {"window_s": 4.0, "startup_s": 3.0, "compile_s": 1.0, "late_compile_s": 0.0, "loss": []}
    at = {"seconds": 10.0, "finished_s": 12.0 + 10 * number}
    return {"number": number, "config": config, "outcome": measured, **at, **more}


def line(arm: str = "after", budget: str = "5m", seed: int = 1, **more: Any) -> dict[str, Any]:
    kept = {
        "script": "w",
        "arm": arm,
        "budget": budget,
        "seed": seed,
        "commit": "0123456789ab",
        "exit": 0,
        "claim": None,
        "likely": None,
    }
    kept |= {"claimed_arm": figures.BASELINE, "likely_arm": "", "tried": 3, "first_candidate_s": 20.0}
    kept |= {"budget_frac": 0.95, "candidate_frac": 0.4, "step_frac": 0.7, "names_load": False}
    return {**kept, **more}


def claimed(value: float, low: float, high: float, arm: str = FAST, **more: Any) -> dict[str, Any]:
    return line(claim={"value": value, "low": low, "high": high, "knobs": {}}, claimed_arm=arm, **more)


def timed(script: str = "w", /, **rates: float) -> list[dict[str, Any]]:
    """Four rounds in which the machine drifts; ratios scatter by one per cent."""
    arms = {figures.BASELINE: 1.0, **{{"fast": FAST, "slow": SLOW}[k]: v for k, v in rates.items()}}
    return [
        {
            "script": script,
            "arm": arm,
            "round": number,
            "rate": 100 * drift * gain * (1 if arm == figures.BASELINE else 1 + 0.01 * (-1) ** number),
            "unit": "samples/s",
        }
        for number, drift in enumerate((1.0, 1.3, 0.8, 1.1))
        for arm, gain in arms.items()
    ]


# Scripts and plan -------------------------------------------------------------------------------


def test_there_are_four_workloads_and_six_packages_and_half_of_them_form_the_subset() -> None:
    assert [s.source for s in SCRIPTS].count("workload") == 4
    assert [s.source for s in SCRIPTS].count("pypi") == 6
    assert sum(s.subset for s in SCRIPTS) == 5


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_has_a_command_and_each_edit_that_lengthens_it_fits(script: Any, tmp_path: Path) -> None:
    bench = scripts.Bench(script, tmp_path)
    assert Path(bench.command[0]).is_absolute()
    for value in (script.longer_args or {}).values():
        assert str(value) in bench.command
    for name, edits in (script.longer_files or {}).items():
        copy = tmp_path / name
        copy.write_text((scripts.envs.GIVEN / script.name / name).read_text())
        scripts.edit(copy, edits)
        assert all(new in copy.read_text() for new in edits.values())


def test_an_edit_of_a_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text("epochs: 1\nepochs: 1\n")
    with pytest.raises(SystemExit, match="2 times"):
        scripts.edit(tmp_path / "c.yml", {"epochs: 1": "epochs: 2"})


def test_hand_picked_configurations_name_scripts_and_knobs_that_exist() -> None:
    known = scripts.known()
    assert known.keys() == {script.name for script in SCRIPTS}
    assert {knob for each in known.values() for config in each for knob in config} <= set(builtin())


def test_the_plan_holds_what_the_issue_asks_for() -> None:
    searches = [search for step in figures.planned(SCRIPTS) for search in step]
    assert len(set(searches)) == len(searches)
    counts: dict[tuple[str, str], int] = {}
    for search in searches:
        counts[search.arm, search.budget] = counts.get((search.arm, search.budget), 0) + 1
    assert counts == {
        ("after", "2m"): 20,
        ("after", "5m"): 20,
        ("after", "10m"): 5,
        ("before", "5m"): 10,
        ("tpe", "5m"): 5,
        ("random", "5m"): 5,
    }
    assert figures.minutes_left(searches, 0, 20.0) == 40 + 100 + 50 + 50 + 25 + 25


def test_the_first_searches_compare_both_trees_script_by_script() -> None:
    first = figures.planned(SCRIPTS)[: len(SCRIPTS)]
    assert [step[0].script for step in first] == [script.name for script in SCRIPTS]
    assert all([search.arm for search in step] == ["after", "before"] for step in first)


def test_a_plan_can_be_narrowed() -> None:
    (step,) = figures.planned(SCRIPTS[:1], arms=("after",), budgets=("5m",), seeds=(1,))
    assert [search.name for search in step] == ["photos_denoise-after-5m-1"]


def test_an_unknown_script_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="nothing_such"):
        scripts.select(SCRIPTS, "ctgan,nothing_such")


# One search -------------------------------------------------------------------------------------


def test_journal_figures_count_candidates_and_time_inside_steps() -> None:
    trials = [
        trial(0, {}),
        trial(1, {"threads": 1}),
        trial(2, {"threads": 1}),
        trial(3, {"precision": "bf16"}, outcome={"kind": "CRASH_EXIT"}),
        trial(4, {"threads": 2}, outcome=None, seconds=0.0, finished_s=0.0),
    ]
    found = figures.journal_figures(trials, budget_s=100.0, wall_s=60.0)
    assert found["budget_frac"] == 0.6
    assert (found["trials"], found["tried"], found["measured"]) == (4, 2, 1)
    assert found["candidate_frac"] == 0.3
    # Three measured runs: 10 s of process, less 3 s of start-up and 1 s of compiling.
    assert found["step_frac"] == 0.3
    assert found["first_candidate_s"] == 12.0


def test_a_search_without_candidates_is_shown_as_never() -> None:
    found = figures.journal_figures([trial(0, {})], budget_s=60.0, wall_s=30.0)
    assert (found["tried"], found["candidate_frac"], found["first_candidate_s"]) == (0, 0.0, None)
    (row,) = figures.rows([line(**found)], [], timer.interval)
    assert "| never | 0 |" in figures.table([row], ["w"])[-1]


def test_time_inside_steps_ends_with_the_last_recorded_loss() -> None:
    losses = [{"t_s": 0.5}, {"t_s": 7.0}]
    outcome = {"window_s": 4.0, "startup_s": 3.0, "compile_s": 1.0, "late_compile_s": 0.0, "loss": losses}
    assert figures.step_seconds(trial(0, {}, outcome=outcome)) == 6.0


def test_figures_and_claim_come_from_a_real_study_and_its_result() -> None:
    study = replay(recorded_world.table(), budget_s=300.0).study
    trials = json.loads(json.dumps([to_wire(one) for one in study.trials]))
    found = figures.journal_figures(trials, budget_s=300.0, wall_s=study.elapsed_s)
    assert found["tried"] == len({t.config for t in study.trials if t.config and t.outcome is not None})
    assert 0 < found["step_frac"] < 1
    assert 0 < found["candidate_frac"] < 1
    answer = answer_or_none(study)
    assert answer is not None
    assert answer.is_better
    result = json.loads(json.dumps(build_best(study, answer, changes_of(study)).data()))
    claim = figures.claim_of(result)
    assert claim is not None
    assert claim["knobs"].items() <= dict(answer.best.config).items()
    assert claim["value"] == pytest.approx(answer.best.speedup.value, rel=1e-4)
    assert figures.claim_of({**result, "is_better": False}) is None


def test_a_likely_pick_is_read_beside_the_confirmed_one() -> None:
    knobs = {"threads": 2, "precision": "fp32"}
    likely = {"knobs": {**knobs, "threads": 1}, "speedup": {"value": 1.4, "low": 0.9, "high": 2.0, "n": 1}}
    result = {"is_better": False, "baseline": {"knobs": knobs}, "picks": {"likely": likely}}
    assert figures.picked(result, "likely") == {"knobs": {"threads": 1}, **likely["speedup"]}
    assert figures.claim_of(result) is None
    assert figures.picked({}, "likely") is None


@pytest.mark.parametrize(
    ("code", "text"), [(0, "faster"), (1, "nothing faster"), (8, "inconclusive"), (3, "failed (exit 3)")]
)
def test_an_outcome_is_named_by_its_exit_code(code: int, text: str) -> None:
    assert figures.outcome(code) == text


# Gains, shares and bars -------------------------------------------------------------------------


def test_gains_compare_runs_of_the_same_round_so_drift_cancels() -> None:
    found = figures.gains(timed(fast=2.0, slow=0.9), timer.interval)
    assert found[FAST]["value"] == pytest.approx(2.0, rel=1e-3)
    assert found[FAST]["high"] / found[FAST]["low"] < 1.05
    assert figures.best_known(found) == FAST


def test_a_failed_run_leaves_its_pair_out() -> None:
    runs = timed(fast=2.0)
    next(run for run in runs if run["arm"] == FAST).pop("rate")
    assert figures.gains(runs, timer.interval)[FAST]["n"] == 3


def test_a_round_beside_other_processes_is_left_out_as_a_whole_and_timed_again() -> None:
    runs = timed(fast=2.0)
    runs[2]["foreign_cores"], runs[5]["foreign_cores"] = 1.0, 0.2
    kept = figures.undisturbed(runs)
    assert {run["round"] for run in kept} == {0, 2, 3}
    assert figures.gains(kept, timer.interval)[FAST]["n"] == 3


def test_an_arm_that_is_not_faster_beyond_its_interval_is_not_the_best_known() -> None:
    assert figures.best_known(figures.gains(timed(slow=1.001), timer.interval)) == figures.BASELINE


@pytest.mark.parametrize(
    ("recommended", "rates", "share"),
    [
        (FAST, {"fast": 2.0, "slow": 1.5}, 1.0),
        (SLOW, {"fast": 2.0, "slow": 1.5}, 0.75),
        (figures.BASELINE, {"fast": 2.0}, 0.5),
        (figures.BASELINE, {"slow": 0.9}, 1.0),
        (SLOW, {"slow": 0.9}, 0.9),
    ],
)
def test_a_share_compares_the_recommended_gain_with_the_best_known(
    recommended: str, rates: dict[str, float], share: float
) -> None:
    found = figures.share(recommended, figures.gains(timed(**rates), timer.interval))
    assert found["value"] == pytest.approx(share, rel=1e-3)
    assert found["low"] <= found["value"] <= found["high"]


def test_there_is_no_share_while_an_arm_has_a_single_pair() -> None:
    runs = [run for run in timed(fast=2.0, slow=1.5) if run["arm"] != FAST or run["round"] == 0]
    assert figures.share(SLOW, figures.gains(runs, timer.interval)) is None


def test_an_arm_that_was_not_timed_has_no_share() -> None:
    assert figures.share(SLOW, figures.gains(timed(fast=2.0), timer.interval)) is None


@pytest.mark.parametrize(("gain", "agrees"), [(2.0, True), (1.9, True), (1.5, False), (2.9, False)])
def test_a_claim_agrees_where_both_intervals_allow_the_difference(gain: float, agrees: bool) -> None:
    (row,) = figures.rows([claimed(2.0, 1.85, 2.2)], timed(fast=gain), timer.interval)
    assert row["agrees"] is agrees


def test_a_claim_whose_runs_all_fail_does_not_hold() -> None:
    runs = [{**run, "rate": 0} for run in timed(fast=2.0) if run["arm"] == FAST]
    for run in runs:
        run.pop("rate")
    (row,) = figures.rows([claimed(2.0, 1.9, 2.1)], runs, timer.interval)
    assert row["agrees"] is False


def test_bars_are_open_until_every_script_was_measured() -> None:
    found = figures.rows([claimed(2.0, 1.9, 2.1)], timed(fast=2.0), timer.interval)
    assert [verdict for _, verdict in figures.bars(found, {"w"})] == [True, None, None, True]


@pytest.mark.parametrize(("good", "verdict"), [(8, True), (7, False)])
def test_the_five_minute_bar_counts_scripts(good: int, verdict: bool) -> None:
    lines, runs = [], []
    for number in range(10):
        arm = FAST if number < good else SLOW
        lines += [claimed(2.0, 1.9, 2.1, arm=arm, script=str(number), seed=seed) for seed in (1, 2)]
        runs += timed(str(number), fast=2.0, slow=1.2)
    found = figures.rows(lines, runs, timer.interval)
    assert figures.bars(found, set(map(str, range(10))))[1][1] is verdict
    assert figures.bars(found, set(map(str, range(9))))[1][1] is None


def test_one_search_that_tries_nothing_misses_the_first_bar() -> None:
    found = figures.rows([line(), line(seed=2, tried=0), line("before", tried=0)], [], timer.interval)
    assert figures.bars(found, set())[0] == ("No search tries 0 candidates: the fewest is 0", False)


def test_beside_a_busy_process_a_refuted_claim_or_a_missing_name_misses_the_bar() -> None:
    good = claimed(2.0, 1.9, 2.1, arm=FAST, names_load=True)
    bad = claimed(3.0, 2.9, 3.1, arm=FAST, names_load=False)
    for lines, verdicts in (([good], [True, True]), ([good, bad], [False, False])):
        found = figures.rows([{**one, "arm": "busy"} for one in lines], timed(fast=2.0), timer.interval)
        assert [verdict for _, verdict in figures.busy_bars(found)] == verdicts


def test_the_report_holds_every_search_and_the_best_known_configuration() -> None:
    runs = timed(fast=2.0, slow=1.5)
    likely = {"value": 1.6, "low": 0.9, "high": 2.8, "knobs": {}}
    lines = [claimed(2.0, 1.9, 2.1), line("before", exit=8, likely=likely, likely_arm=SLOW)]
    text = figures.report(
        figures.rows(lines, runs, timer.interval),
        runs,
        timer.interval,
        order=["w"],
        machine={"cores": 2, "cpu": "X", "torch": "2", "date": "2026-01-01"},
        codes={"after": {"abc"}},
        hand_picked=set(),
    )
    rows = [text_line for text_line in text.splitlines() if text_line.startswith("| w |")]
    assert rows[0].endswith("| faster | 2.00 [1.90, 2.10] | 2.00 [1.96, 2.04] | yes | 100% [100%, 100%] |")
    assert "| inconclusive | none; likely 1.60 [0.90, 2.80] | 1.50 [1.47, 1.53] |" in rows[1]
    assert '| `{"precision": "bf16"}` | 2.00 [1.96, 2.04] | 2 | no |' in rows[2]


# Resumption -------------------------------------------------------------------------------------


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(RUN, "code_of", lambda tree: "abc" if tree == RUN.ROOT else "old")
    args = argparse.Namespace(tree=tmp_path, work=tmp_path / "work", results=tmp_path, rounds=2, only="")
    args.arm, args.budget, args.seeds, args.scripts = "", "5m", "1", SCRIPTS[:1]
    return RUN.Experiment(args)


def test_a_search_that_is_done_is_not_planned_again(experiment: Any) -> None:
    assert [s.arm for _, missing in experiment.steps() for s in missing] == [
        "after",
        "before",
        "tpe",
        "random",
    ]
    experiment.add("searches", line(script="photos_denoise", code="abc"))
    assert [s.arm for _, missing in experiment.steps() for s in missing] == ["before", "tpe", "random"]


def test_results_of_another_machine_or_other_code_do_not_count(experiment: Any) -> None:
    experiment.add("searches", line(script="photos_denoise", code="older"))
    experiment.machine = {**experiment.machine, "id": "another"}
    experiment.add("searches", line(script="photos_denoise", code="abc"))
    experiment.machine = {**experiment.machine, "id": RUN.machine_id()}
    assert experiment.searched() == []


def test_rounds_go_on_until_every_configuration_has_its_pairs(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {f"abc {n}": {"command": [], "tree": RUN.ROOT, "variables": {}} for n in range(4)}
    monkeypatch.setattr(experiment, "timed", lambda *_: {"rate": 1.0, "unit": "samples/s"})
    experiment.time("photos_denoise", arms)
    runs = experiment.lines("timings")
    assert all(sum(run["arm"] == arm for run in runs) == 2 for arm in arms)
    assert all(
        len({run["arm"] for run in runs if run["round"] == n}) <= RUN.ARMS_A_ROUND + 1 for n in range(4)
    )
    before = len(runs)
    experiment.time("photos_denoise", arms)
    assert len(experiment.lines("timings")) == before


def test_a_configuration_that_compiles_runs_once_before_it_counts(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def one(_bench: Any, how: Any) -> dict[str, Any]:
        calls.append(how["command"])
        return {"rate": 1.0, "unit": "samples/s"}

    monkeypatch.setattr(experiment, "timed", one)
    arm = 'abc {"compile_mode": "default"}'
    experiment.time("photos_denoise", {arm: {"command": ["it"], "tree": RUN.ROOT, "variables": {}}})
    assert calls.count(["it"]) == experiment.args.rounds + 1


def test_hand_picked_configurations_are_applied_by_facts_of_a_finished_search(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [{"precision": "bf16"}, {"attention_backend": "flash"}]
    monkeypatch.setattr(scripts, "known", lambda: {"photos_denoise": wanted})
    assert experiment.hand_picked("photos_denoise") == {}
    done = line(script="photos_denoise", code="abc", name="one")
    experiment.add("searches", done)
    studies = experiment.folder(done) / "home" / "studies"
    studies.mkdir(parents=True)
    replay(recorded_world.table(), budget_s=60.0, folder=studies / "x")
    for _ in range(2):
        ((arm, how),) = experiment.hand_picked("photos_denoise").items()
    assert arm == RUN.arm_name("abc", wanted[0])
    assert how["variables"]["AUTOTUNE_HOME"] == str(experiment.folder(done) / "home")
    best = read_best(how["command"][how["command"].index("apply") + 1])
    assert [(change.knob, change.value) for change in best.picks["best"].changes] == [("precision", "bf16")]
    (refused,) = experiment.lines("timings")
    assert (refused["arm"], refused["failed"]) == (RUN.arm_name("abc", wanted[1]), "refused")


def test_a_finished_search_becomes_a_line_without_places(
    experiment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    search = figures.Search(script="photos_denoise", arm="after", budget="5m", seed=1)
    folder = experiment.folder({"code": "abc", "name": search.name})
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"exit": 1, "study_dir": f"{folder}/home/x"}))
    (folder / "log.txt").write_text(f"busy: {RUN.SPINNER}\n")
    monkeypatch.setattr(RUN, "trials_of", lambda *_: [trial(0, {})])
    made = experiment.line(search, folder, 1, 150.0)
    assert (made["tried"], made["claim"], made["names_load"], made["budget_frac"]) == (0, None, True, 0.5)
    assert str(tmp_path) not in json.dumps(made)


# Timing -----------------------------------------------------------------------------------------


def test_a_rate_counts_samples_where_there_are_some_and_leaves_evaluation_out() -> None:
    second = 10**9
    records = [(n * second, 0, 8, second // 2 if n == 5 else 0) for n in range(12)]
    found = timing.rate_of(records, 0, 10 * second)
    assert found == {"rate": pytest.approx(80 / 9.5), "unit": "samples/s", "steps": 10}
    steps = [(t, 0, 0, 0) for t, *_ in records]
    assert timing.rate_of(steps, 0, 10 * second) == {"rate": 1.0, "unit": "steps/s", "steps": 10}


def test_a_window_with_too_few_steps_has_no_rate() -> None:
    second = 10**9
    records = [(n * second, 0, 8, 0) for n in range(timing.MIN_STEPS)]
    assert timing.rate_of(records, 0, 10 * second) is None


def test_a_process_that_ends_without_a_step_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('no data')"]
    found = timing.run_once(command, cwd=tmp_path, variables={}, warm_s=0, window_s=1, limit_s=60)
    assert found == {"failed": "exit 1: no data"}


def test_the_busy_process_has_its_own_name_and_is_ended(tmp_path: Path) -> None:
    with RUN.spinning(tmp_path) as process:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes() if sys.platform == "linux" else b""
    assert process.poll() is not None
    if command:
        assert RUN.SPINNER.encode() in command


def test_an_exit_without_git_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="fails in"):
        RUN.git(tmp_path / "missing", "status")


def test_a_search_gets_the_given_environment_and_nothing_of_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Process:
        returncode = 1

        def __init__(self, words: list[str], **how: Any) -> None:
            seen.update(how, words=words)

        def wait(self, limit_s: float | None) -> int:
            seen["limit_s"] = limit_s
            return 1

        def poll(self) -> int:
            return 1

    monkeypatch.setattr(RUN.searching.subprocess, "Popen", Process)
    variables = {"PYTHONPATH": "tree", "AUTOTUNE_BUDGET": "9h"}
    home = tmp_path / "home"
    code = RUN.searching.run_autotune(["list"], cwd=tmp_path, home=home, variables=variables, limit_s=5.0)
    assert code == 1
    assert seen["env"] == {"PYTHONPATH": "tree", "AUTOTUNE_TRANSFER": "off", "AUTOTUNE_HOME": str(home)}
    assert (seen["words"][-1], seen["limit_s"]) == ("list", 5.0)


def test_a_search_beyond_its_limit_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Process:
        returncode = None

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def wait(self, limit_s: float | None) -> int:
            calls.append(f"wait {limit_s}")
            if len(calls) == 1:
                raise RUN.subprocess.TimeoutExpired("autotune", limit_s or 0.0)
            self.returncode = 75
            return 75

        def poll(self) -> int | None:
            return self.returncode

        def terminate(self) -> None:
            calls.append("terminate")

    monkeypatch.setattr(RUN.searching.subprocess, "Popen", Process)
    assert RUN.searching.run_autotune(["list"], cwd=tmp_path, limit_s=5.0) == 75
    assert calls[:2] == ["wait 5.0", "terminate"]
