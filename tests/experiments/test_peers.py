"""Other tools on two scripts: what is taken from their words, and the arithmetic of the comparison."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "peers"
sys.path[:0] = [str(HERE), str(HERE.parent / "third_party")]

import peer_tools as tools  # noqa: E402 (needs the path set above)

_SPEC = importlib.util.spec_from_file_location("peers_run", HERE / "run.py")
assert _SPEC is not None
assert _SPEC.loader is not None
RUN: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let every peer have run in `tmp_path`, and have reported this."""

    def put(text: str) -> Path:
        reported = {"version": "1", "seconds": 3.0, "exit": 0}
        monkeypatch.setattr(tools, "_called", lambda *_, **__: (reported, text, tmp_path))
        return tmp_path

    return put


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    return tools.Bench(rooms=tools.envs.Rooms(tmp_path), folder=tmp_path, budget="1m")


# What is taken from their words ---------------------------------------------------------------


def _doctor(**proven: Any) -> str:
    tried = {
        "candidate": "dataloader_workers",
        "env": {"TRAIN_DOCTOR_FIX_NUM_WORKERS": "2"},
        "ratio": {"point": 2.3},
        "loss_check": {"status": "outside tolerance"},
    }
    return "Profiling ...\n" + json.dumps(
        {"headline": "said", "candidates": [tried], "proven": proven or None}, indent=2
    )


def test_what_train_doctor_proved_is_its_answer(message: Any, bench: Any) -> None:
    ratio = {"point": 2.3, "low": 2.1, "high": 2.5, "n_pairs": 5}
    message(_doctor(candidate="dataloader_workers", ratio=ratio))
    answer = tools.train_doctor(bench, "input_cnn")
    assert answer["flags"] == ["--num-workers", "2"]
    assert answer["claim"] == {"value": 2.3, "low": 2.1, "high": 2.5, "n": 5}


def test_what_train_doctor_measured_and_threw_away_is_not(message: Any, bench: Any) -> None:
    message(_doctor())
    answer = tools.train_doctor(bench, "input_cnn")
    assert answer["flags"] == []
    assert answer["claim"] is None
    assert answer["tried"]["dataloader_workers"][1]["status"] == "outside tolerance"


def test_a_tool_that_breaks_off_hands_over_nothing(message: Any, bench: Any) -> None:
    message("Traceback ...\nValueError: no such thing")
    for ask in (tools.train_doctor, tools.fournex, tools.loadtune, tools.lightning):
        answer = ask(bench, "input_cnn")
        assert answer["flags"] == []
        assert answer["says"] == "ValueError: no such thing"


def test_fournex_answers_by_the_variables_of_its_winner(message: Any, bench: Any) -> None:
    place = message("")
    folder = place / "runs" / "tune-1"
    folder.mkdir(parents=True)
    given = {"FRX_NUM_WORKERS": "2", "FRX_PREFETCH_FACTOR": "4", "FRX_PERSISTENT_WORKERS": "true"}
    winner = {"label": "two", "env_vars": given, "throughput_delta": 0.25}
    trial = {"label": "two", "throughput_steps_per_sec": 5.0}
    report = {"winner": winner, "trials": [trial], "baseline": {"throughput_steps_per_sec": 4.0}}
    (folder / "autopilot_report.json").write_text(json.dumps(report))
    answer = tools.fournex(bench, "input_cnn")
    assert answer["flags"] == ["--num-workers", "2", "--prefetch-factor", "4", "--persistent-workers"]
    assert answer["claim"] == {"value": 1.25}


def _raw(place: Path, *trials: tuple[dict[str, Any], float | None]) -> None:
    knobs = {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "num_threads": None,
        "batch_size": None,
        "compile": False,
        "amp": False,
    }
    data = {
        "baseline": {"throughput": 100.0},
        "trials": [
            {
                "knobs": {**knobs, **changed},
                "reason": "why",
                "result": {"throughput": rate} if rate else {"error": "it broke"},
            }
            for changed, rate in trials
        ],
    }
    (place / "raw.json").write_text(json.dumps(data))


def test_loadtune_answers_by_the_fastest_that_ran(message: Any, bench: Any) -> None:
    _raw(message(""), ({"num_workers": 2}, 150.0), ({"num_workers": 2, "amp": True}, 160.0), ({}, None))
    answer = tools.loadtune(bench, "input_cnn")
    assert answer["flags"] == ["--num-workers", "2", "--bf16"]
    assert answer["claim"] == {"value": 1.6}


def test_loadtune_may_find_nothing(message: Any, bench: Any) -> None:
    _raw(message(""), ({"num_workers": 2}, 90.0))
    assert tools.loadtune(bench, "input_cnn")["flags"] == []


@pytest.mark.parametrize(("size", "flags"), [(32, []), (8192, ["--batch-size", "8192"])])
def test_a_batch_of_another_size_trains_differently(
    message: Any, bench: Any, size: int, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message(f'log\nFOUND {{"batch_size": {size}, "seconds": 1.0}}\n')
    monkeypatch.setattr(tools, "_default_batch", lambda _name: 32)
    answer = tools.lightning(bench, "input_cnn")
    assert answer["flags"] == flags
    assert answer["changes_training"] is bool(flags)


# The comparison -------------------------------------------------------------------------------


def _state(**answers: dict[str, Any]) -> dict[str, Any]:
    return {"answers": answers, "runs": []}


def test_equal_answers_are_timed_once_and_nothing_found_is_the_script() -> None:
    state = _state(
        one={"flags": ["--num-workers", "2"]}, two={"flags": ["--num-workers", "2"]}, none={"flags": []}
    )
    arms, of_tool = RUN.arms_of(state, "input_cnn")
    assert of_tool == {"one": "one", "two": "one", "none": RUN.AS_IT_IS}
    assert set(arms) == {RUN.AS_IT_IS, RUN.AGAIN, *RUN.BY_HAND["input_cnn"], "one"}


def test_what_is_known_by_hand_and_found_by_a_tool_is_timed_once() -> None:
    state = _state(tool={"flags": RUN.BY_HAND["char_gpt"]["bf16"]})
    _, of_tool = RUN.arms_of(state, "char_gpt")
    assert of_tool == {"tool": "bf16"}


def _runs(*cycles: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"cycle": c, "arm": arm, "samples_per_s": rate}
        for c, rates in enumerate(cycles)
        for arm, rate in rates.items()
    ]


def test_ratios_are_taken_within_whole_cycles() -> None:
    runs = _runs(
        {RUN.AS_IT_IS: 100, RUN.AGAIN: 101, "x": 200},
        {RUN.AS_IT_IS: 50, RUN.AGAIN: 50, "x": 100},
        {RUN.AS_IT_IS: 1},
    )
    found = RUN.ratios(runs)
    assert found["x"]["value"] == pytest.approx(2.0)
    assert found["x"]["n"] == 2


def test_an_arm_that_failed_once_has_no_rate_and_stops_nothing() -> None:
    rates = {RUN.AS_IT_IS: 100, RUN.AGAIN: 100, "x": 200, "y": 300}
    runs = _runs(rates, rates)
    runs[2] = {"cycle": 0, "arm": "x", "failed": True}
    found = RUN.ratios(runs)
    assert "x" not in found
    assert found["y"]["n"] == 2


def test_a_tool_that_failed_is_proposed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RUN, "RESULTS", tmp_path)
    reported = iter([{"failed": True, "flags": [], "says": "no network"}, {"flags": [], "says": "nothing"}])
    monkeypatch.setattr(tools, "TOOLS", {"one": (lambda *_: next(reported), "none")})
    made, options = _state(), type("Options", (), {"tools": ["one"]})
    RUN.requested(made, "input_cnn", options, None)
    assert made["answers"] == {}
    RUN.requested(made, "input_cnn", options, None)
    assert made["answers"]["one"]["says"] == "nothing"


def test_a_gain_that_is_stated_for_the_unchanged_script_does_not_hold() -> None:
    made = _state(one={"flags": [], "edits": "none", "says": "", "claim": {"value": 1.3}})
    rates = {RUN.AS_IT_IS: 100, RUN.AGAIN: 100, **dict.fromkeys(RUN.BY_HAND["input_cnn"], 200)}
    made["runs"] = _runs(rates, rates, rates)
    assert any("| one" in line and "**no**" in line for line in RUN.table(made, "input_cnn"))


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (None, None),
        ({"value": 2.0}, True),
        ({"value": 2.4}, False),
        ({"value": 2.4, "low": 2.05, "high": 2.8}, True),
        ({"value": 1.5, "low": 1.4, "high": 1.6}, False),
    ],
)
def test_a_statement_holds_where_it_agrees_with_the_stopwatch(claim: Any, verdict: bool | None) -> None:
    assert RUN.holds(claim, {"value": 2.0, "low": 1.9, "high": 2.1}) is verdict


def test_the_table_names_what_was_found_and_what_trains_differently() -> None:
    state = _state(
        autotune={"flags": [], "edits": "none", "says": "nothing is shown to be faster", "seconds": 60.0},
        lightning={
            "flags": ["--batch-size", "64"],
            "edits": "a module",
            "says": "batch size 64",
            "changes_training": True,
            "claim": {"value": 3.0},
        },
    )
    rates = {RUN.AS_IT_IS: 100, RUN.AGAIN: 100, "8 workers": 400, "16 workers": 500}
    rates |= {"16 workers, bf16": 480, "lightning": 200}
    state["runs"] = _runs(rates, rates, rates)
    lines = RUN.table(state, "input_cnn")
    mine = next(line for line in lines if "autotune" in line)
    assert "the script as it is" in mine
    assert "| 0.20 |" in mine
    theirs = next(line for line in lines if "lightning" in line)
    assert "**trains differently**" in theirs
    assert "| 0.40 | **no** |" in theirs


def test_nothing_that_is_kept_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RUN, "RESULTS", tmp_path)
    best = HERE / "work" / "input_cnn" / "best.yaml"
    state = _state(autotune={"apply": str(best), "says": "said in /home/somebody/place/log.txt"})
    RUN.keep(state, "input_cnn")
    kept = json.loads((tmp_path / "input_cnn.json").read_text())
    assert "/home" not in json.dumps(kept)
    again, of_tool = RUN.arms_of(kept, "input_cnn")
    assert str(best) in again[of_tool["autotune"]]


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(RUN.BY_HAND))
def test_a_script_trains_and_takes_every_option(name: str) -> None:
    """One step of each script's parts, with the options that an answer may carry."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE / 'scripts')!r})\n"
        f"import torch, {name} as script\n"
        "torch.manual_seed(0)\n"
        "batch = torch.utils.data.default_collate([script.make_dataset()[i] for i in range(8)])\n"
        "model = script.make_model(); optimizer = script.make_optimizer(model)\n"
        "first = script.loss_of(model, batch); first.backward(); optimizer.step()\n"
        "assert script.loss_of(model, batch) < first\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    options = subprocess.run(
        [sys.executable, str(HERE / "scripts" / f"{name}.py"), "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert all(
        option in options for option in ("--num-workers", "--bf16", "--compile", "--threads", "--batch-size")
    )
