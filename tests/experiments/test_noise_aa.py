"""Real runs of one script, judged as if half of them were another: what is counted, and that it goes on."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

PLACE = Path(__file__).parents[2] / "experiments" / "noise_aa" / "run.py"


@pytest.fixture(scope="module")
def aa() -> Any:
    spec = importlib.util.spec_from_file_location("noise_aa_run", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["noise_aa_run"] = module
    spec.loader.exec_module(module)
    return module


def pairs(n: int, *, gain: float = 1.0, foreign: float = 0.0, spread: float = 0.01) -> list[Any]:
    """In every second pair the candidate comes first, as it does in a confirmation."""
    draw = random.Random(n)
    found = []
    for k in range(n):
        base, other = (100.0 * (1.0 + spread * draw.gauss(0.0, 1.0)) for _ in range(2))
        one, two = {"rate": base, "foreign": 0.1}, {"rate": gain * other, "foreign": 0.1 + foreign}
        found.append((one, two) if k % 2 == 0 else (two, one))
    return found


def test_runs_of_one_script_are_no_difference_and_a_gain_is_one(aa: Any) -> None:
    verdict, (low, high) = aa.judged(pairs(5))
    assert verdict == "no_difference"
    assert low < 1.0 < high
    assert aa.judged(pairs(5, gain=1.3))[0] == "faster"
    assert aa.judged(pairs(5, gain=0.7))[0] == "slower"


def test_pairs_of_which_one_half_had_a_neighbour_do_not_count_here_either(aa: Any) -> None:
    assert aa.judged(pairs(5, gain=1.3, foreign=1.0)) == ("no_difference", None)


def test_stretches_that_share_no_pair_are_counted_apart_from_all_of_them(aa: Any) -> None:
    whole = pairs(12)
    assert aa.counted(whole)["comparisons"] == 2
    assert aa.counted(whole, step=1)["comparisons"] == 8
    assert aa.counted(whole[:4]) == {
        "comparisons": 0, "faster": 0, "slower": 0, "no_difference": 0, "width": None,
    }  # fmt: skip


def test_the_pairs_that_are_run_by_default_are_twenty_comparisons_at_least(aa: Any) -> None:
    assert aa.PAIRS // aa.PAIRS_PER_CLAIM * len(aa.NAMES) >= 20


def test_a_neighbour_is_there_while_runs_are_made_and_its_results_are_kept_apart(
    aa: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[str] = []

    class Neighbour:
        def __init__(self, command: list[str]) -> None:
            there.append(command[-1])

        def terminate(self) -> None:
            there.clear()

        def wait(self) -> None:
            assert not there

    class Recording:
        def __init__(self, *_: object) -> None:
            pass

        def run(self, number: int, *, seed: int) -> dict[str, object]:
            assert there == ["while True: pass"]
            return {"rate": 100.0 + number, "foreign": 1.0, "seed": seed}

    monkeypatch.setattr(aa.neighbours.subprocess, "Popen", Neighbour)
    monkeypatch.setattr(aa.recording, "Recording", Recording)
    monkeypatch.setattr(aa, "HERE", tmp_path)
    aa.main(["--pairs", "1", "--neighbour", "busy"])
    assert not there
    head = json.loads((tmp_path / "results" / "noise_aa_busy.jsonl").read_text().splitlines()[0])
    assert head["identity"]["neighbour"] == "busy"
    assert not (tmp_path / "results" / "noise_aa.jsonl").exists()


def test_it_goes_on_where_it_stopped_and_workloads_take_turns(
    aa: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[tuple[str, int]] = []

    class Recording:
        def __init__(self, script: Path, *_: object) -> None:
            self.name = script.stem

        def run(self, number: int, *, seed: int) -> dict[str, object] | None:
            requested.append((self.name, number))
            if len(requested) == 5:
                return None  # a run that failed takes its pair along, and nothing else
            return {"rate": 100.0 + number, "foreign": 0.2, "seed": seed}

    monkeypatch.setattr(aa.recording, "Recording", Recording)
    out = tmp_path / "r.jsonl"
    with pytest.raises(SystemExit, match="photos_denoise failed"):
        aa.main(["--pairs", "1", "--out", str(out)])
    assert [name for name, _ in requested[::2]] == list(aa.NAMES)
    kept = [json.loads(line)["case"] for line in out.read_text().splitlines()[1:]]
    assert kept == list(aa.NAMES[:2])
    # The lock of the first call went with its process; here it is still ours.
    monkeypatch.setattr(aa.proofs.fcntl, "flock", lambda *_: None)
    aa.main(["--pairs", "1", "--out", str(out)])
    assert requested[6:] == [(aa.NAMES[2], 0), (aa.NAMES[2], 1)]
    reported = json.loads(out.with_suffix(".json").read_text())
    assert set(reported) == set(aa.NAMES)
    capsys.readouterr()
    aa.main(["--pairs", "1", "--out", str(out), "--list"])
    assert "1 pairs beside 0.20 cores;" in capsys.readouterr().out
