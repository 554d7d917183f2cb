"""Entry points of other people's packages: list, data, arithmetic and resumption, without a run."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import runpy
import struct
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "third_party"
sys.path.insert(0, str(HERE))

import third_party_envs as envs  # noqa: E402 (needs the path set above)
import third_party_judge as judge  # noqa: E402 (needs the path set above)

_SPEC = importlib.util.spec_from_file_location("third_party_run", HERE / "run.py")
assert _SPEC is not None
assert _SPEC.loader is not None
RUN: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)
CANDIDATES = envs.load()
SECOND = 10**9
RESULTS = sorted((HERE / "results").glob("*.jsonl"))
LINES = [(path.stem, json.loads(line)) for path in RESULTS for line in path.read_text().splitlines()]


# The list and its data ------------------------------------------------------------------------


def test_there_are_enough_candidates_of_several_kinds() -> None:
    assert len(CANDIDATES) >= 14
    assert len({c.package for c in CANDIDATES}) == len(CANDIDATES)
    assert {next(iter(c.entry)) for c in CANDIDATES} >= {"module", "console"}
    text = " ".join(c.kind for c in CANDIDATES)
    assert all(word in text for word in ("own loop", "Lightning", "Hugging Face", "Hydra", "Ignite"))


@pytest.mark.parametrize("candidate", CANDIDATES, ids=[c.name for c in CANDIDATES])
def test_a_candidate_is_pinned_and_complete(candidate: envs.Candidate) -> None:
    assert re.fullmatch(r"[\w.-]+==[\w.]+", candidate.requires[0])
    assert len(candidate.entry) == 1
    assert candidate.kind
    for word in candidate.args:
        # What is named as a file of ours is written by its maker, or lies there.
        assert "/" not in word or word.startswith("{place}/") or "=" in word


def test_everything_that_is_given_belongs_to_a_candidate() -> None:
    known = {name for c in CANDIDATES for name in (c.name, c.data)}
    assert {folder.name for folder in (HERE / "given").iterdir()} <= known
    for candidate in CANDIDATES:
        assert not candidate.data or (HERE / "given" / candidate.data).is_dir()


def test_no_training_loop_is_ours() -> None:
    for path in (HERE / "given").rglob("*.py"):
        assert not re.search(r"torch\.optim|\.backward\(|\.step\(", path.read_text()), path


def made(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    monkeypatch.chdir(folder)
    runpy.run_path(str(HERE / "given" / name / "make.py"))
    return folder


def test_forces_of_the_made_atoms_follow_their_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made("atoms", tmp_path / "a", monkeypatch)
    text = (first / "train.xyz").read_text()
    assert text == (made("atoms", tmp_path / "b", monkeypatch) / "train.xyz").read_text()
    frames = text.split("6\nLattice")[1:]
    assert len(frames) == 96
    for frame in frames[:5]:
        head, *lines = frame.strip().splitlines()
        energy = float(re.findall(r" energy=([-\d.]+)", head)[0])
        rows = [[float(number) for number in line.split()[1:]] for line in lines]
        assert energy > 0
        for axis in range(3):
            # Springs pull both ways.
            assert sum(row[3 + axis] for row in rows) == pytest.approx(0, abs=1e-4)
        assert [row[3:6] for row in rows] == [row[6:9] for row in rows]


def test_made_molecules_are_distinct_and_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (made("chemprop", tmp_path / "a", monkeypatch) / "molecules.csv").read_text().splitlines()
    assert lines[0] == "smiles,value"
    assert len({line.split(",")[0] for line in lines[1:]}) == len(lines) - 1 == 300
    assert all(float(line.split(",")[1]) == float(line.split(",")[1]) for line in lines[1:])


def test_made_pictures_are_png_of_the_size_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made("cellpose", tmp_path / "a", monkeypatch) / "images"
    assert len(list(folder.glob("*_masks.png"))) == 12
    for path in folder.iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", data[16:24]) == (96, 96)


# Two clocks -----------------------------------------------------------------------------------


def records(*rows: tuple[float, int, int, float]) -> list[tuple[int, int, int, int]]:
    return [(round(t * SECOND), number, count, round(aside * SECOND)) for t, number, count, aside in rows]


def test_a_window_is_between_the_last_steps_that_had_ended() -> None:
    seen = judge.window(
        records((1, 0, 8, 0), (2, 0, 8, 0), (3, 0, 8, 0.5), (4, 0, 4, 0)), 1.001 * SECOND, 4.2 * SECOND
    )
    assert seen == {"steps": 3, "samples": 20, "seconds": 3.0, "evaluation_s": 0.5}


def test_other_optimizers_belong_to_the_steps_of_the_first() -> None:
    turns = records((1, 0, 8, 0), (1.5, 1, 2, 0), (2, 0, 6, 0), (2.5, 1, 2, 0), (3, 0, 6, 0))
    seen = judge.window(turns, 1 * SECOND, 3 * SECOND)
    assert seen is not None
    assert (seen["steps"], seen["samples"]) == (2, 16)
    assert judge.per_step(turns) == 8


@pytest.mark.parametrize(("begin", "end"), [(0.0, 0.5), (3.5, 3.9), (0.5, 2.0)])
def test_a_window_without_two_steps_is_none(begin: float, end: float) -> None:
    rows = records((1, 0, 8, 0), (2, 0, 8, 0), (3, 0, 8, 0))
    assert judge.window(rows, begin * SECOND, end * SECOND) is None


def test_equal_figures_are_off_by_nothing() -> None:
    seen = {"steps": 4, "samples": 32, "seconds": 2.0, "evaluation_s": 0.4}
    clock = judge.compared(seen, [8] * 4, (20.0, "samples/s"), counts_evaluation=False)
    assert (clock["error_frac"], clock["steps_off"], clock["samples_off"]) == (0.0, 0, 0)
    counted = judge.compared(seen, [8] * 4, (2.02, "steps/s"), counts_evaluation=True)
    assert counted["error_frac"] == pytest.approx(0.01)


def test_without_a_loader_steps_are_compared() -> None:
    seen = {"steps": 4, "samples": 0, "seconds": 2.0, "evaluation_s": 0.0}
    clock = judge.compared(seen, [8] * 4, (16.0, "samples/s"), counts_evaluation=False)
    assert (clock["unit"], clock["published"], clock["error_frac"]) == ("steps/s", 2.0, 0.0)
    assert clock["samples_off"] is None


def test_a_lost_step_shows() -> None:
    seen = {"steps": 5, "samples": 40, "seconds": 2.0, "evaluation_s": 0.0}
    clock = judge.compared(seen, [8, 8, 8, 16], (20.0, "samples/s"), counts_evaluation=False)
    assert (clock["steps_off"], clock["samples_off"]) == (-1, 0)


def test_a_file_that_ends_within_a_record_is_read_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "steps.1"
    path.write_bytes(judge.RECORD.pack(1, 0, 8, 0) + b"\0" * 7)
    assert judge.read_records(path) == [(1, 0, 8, 0)]


@pytest.mark.parametrize(
    ("knob", "value", "seen", "word"),
    [
        ("threads", 1, {"threads": 2}, "2 threads"),
        ("fused_optimizer", True, {"fused": [True, False]}, "fused"),
        ("num_workers", 2, {"workers": 0}, "0 processes"),
        ("compile_mode", "default", {"graphs": 0}, "no graph"),
        ("gc_control", "freeze", {"frozen": 0}, "frozen"),
        ("precision", "bf16", {"formats": {"float32": 9, "bfloat16": 1}}, "float32"),
        ("effective_batch", 32, {"per_step": 16}, "16 samples per step"),
        ("accumulation", 2, {"per_step": 8}, "8 samples per step"),
    ],
)
def test_what_was_seen_speaks_against_a_knob(knob: str, value: Any, seen: dict[str, Any], word: str) -> None:
    before = {"per_step": 16}
    assert word in judge.contradiction(knob, value, {"per_step": 0, **seen}, before)


@pytest.mark.parametrize(
    ("knob", "value", "seen"),
    [
        ("threads", 1, {"threads": 1, "per_step": 16}),
        ("precision", "bf16", {"formats": {"bfloat16": 9, "float32": 2}, "per_step": 16}),
        ("precision", "bf16", {"formats": {}, "per_step": 16}),
        ("effective_batch", 32, {"per_step": 32}),
        ("accumulation", 2, {"per_step": 16}),
        ("channels_last", True, {"per_step": 16}),
        ("threads", 1, {}),
    ],
)
def test_what_agrees_or_cannot_be_seen_does_not(knob: str, value: Any, seen: dict[str, Any]) -> None:
    assert judge.contradiction(knob, value, seen, {"per_step": 16}) == ""


# Texts ----------------------------------------------------------------------------------------


def test_folders_addresses_and_the_machine_are_taken_out() -> None:
    node = platform.node() or "<machine>"
    text = f"{HERE}/run.py at /srv/people/me/bin/python by https://pypi.example/x on {node}: a/b 1/2"
    found = judge.scrubbed(text, ["/srv/people/me"])
    assert found == "experiments/third_party/run.py at bin/python by <address> on <machine>: a/b 1/2"
    assert judge.scrubbed_data({"a": ["/x/y/z.py", 3, None]}) == {"a": ["z.py", 3, None]}


LINE = {"name": "ctgan", "ok": True, "reason": ""}
FOUND = {
    ("ctgan", "install", ""): {**LINE, "what": "install"},
    ("ctgan", "baseline", ""): {
        **LINE,
        "what": "baseline",
        "outcome": "measured",
        "clock": {"steps": 9, "steps_off": 0, "samples": 0, "samples_off": 0, "error_frac": 0.00123},
    },
    ("ctgan", "knob", "threads"): {**LINE, "what": "knob", "knob": "threads", "outcome": "applied"},
    ("ctgan", "knob", "num_workers"): {**LINE, "what": "knob", "knob": "num_workers", "outcome": "refused"},
    ("ctgan", "knob", "precision"): {
        **LINE,
        "what": "knob",
        "knob": "precision",
        "outcome": "failed: crash_exit",
    },
    ("vamb", "install", ""): {"name": "vamb", "what": "install", "ok": False, "reason": "no wheel"},
}


def test_the_table_has_a_row_for_each_that_was_tried() -> None:
    rows = judge.table(CANDIDATES, FOUND).splitlines()[2:]
    first = "| ctgan 0.12.1 | `python -m ctgan` | measured | 0 of 9 | +0.12 % | threads"
    assert rows == [
        first + " | num_workers | precision: failed: crash_exit |",
        "| vamb 5.0.4 | `vamb` | install failed: no wheel |  |  |  |  |  |",
    ]


def test_only_what_lies_between_the_marks_is_written_anew() -> None:
    page = f"a\n{judge.BEGIN}\nold\n{judge.END}\nb\n"
    once = judge.with_tables(page, [("First", "| x |"), ("Second", "")])
    assert once == f"a\n{judge.BEGIN}\n\n### First\n\n| x |\n\n{judge.END}\nb\n"
    assert judge.with_tables(once, [("First", "| x |"), ("Second", "")]) == once


def test_the_page_is_that_of_the_results() -> None:
    titles = (("before", "First runs, before any mend"), ("after", "After mends"))
    found = [(title, judge.read_results(when)) for when, title in titles]
    tables = [(title, judge.table(CANDIDATES, results) if results else "") for title, results in found]
    page = (HERE / "README.md").read_text()
    assert judge.with_tables(page, tables) == page, "python experiments/third_party/run.py --table"


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_results_name_no_folder(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"(?<![\w.])/(?:work|tmp|root|home|usr|opt)\b", text)
    assert "://" not in text


def test_every_line_is_of_a_candidate_and_says_how_it_ended() -> None:
    names = {c.name for c in CANDIDATES}
    for when, line in LINES:
        assert when in ("before", "after")
        assert line["name"] in names
        assert line["ok"] or line["reason"], line
        if line["what"] == "knob":
            assert line["knob"] in judge.KNOBS
            assert line["outcome"] != "refused" or line["reason"]


# Going on -------------------------------------------------------------------------------------


class Fake:
    """A `Runs` that notes its calls."""

    requested: ClassVar[list[str]] = []
    baseline_ok = True
    remembers = True

    def __init__(self, candidate: Any, rooms: Any) -> None:
        self.candidate = candidate

    def bare(self) -> dict[str, Any]:
        return self._message("bare")

    def inspect(self) -> dict[str, Any]:
        return self._message("inspect")

    def baseline(self) -> dict[str, Any]:
        reason = "" if self.baseline_ok else "no steps"
        return {**self._message("baseline"), "ok": self.baseline_ok, "reason": reason}

    def remember(self) -> bool:
        return self.remembers

    def knob(self, knob: str) -> dict[str, Any]:
        return {**self._message(knob), "knob": knob, "outcome": "applied"}

    def _message(self, what: str) -> dict[str, Any]:
        Fake.requested.append(what)
        return {"ok": True, "reason": ""}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("third_party_runs")
    module.__dict__["Runs"] = Fake
    monkeypatch.setitem(sys.modules, "third_party_runs", module)
    monkeypatch.setattr(judge, "results_path", lambda when: tmp_path / "results" / f"{when}.jsonl")
    monkeypatch.setattr(
        envs,
        "install",
        lambda *_: Fake.requested.append("install") or {"ok": True, "reason": "", "versions": {}},
    )
    monkeypatch.setattr(envs, "lay_out", lambda *_: "")
    monkeypatch.setattr(Fake, "requested", [])
    monkeypatch.setattr(Fake, "remembers", True)
    monkeypatch.setattr(Fake, "baseline_ok", True)

    def start(knobs: list[str], *, again: bool = False) -> list[str]:
        Fake.requested.clear()
        RUN.Session(CANDIDATES[0], envs.Rooms(tmp_path), "before", again=again).all(knobs)
        return list(Fake.requested)

    return start


def test_what_has_a_result_is_not_done_again(session: Any) -> None:
    assert session(["threads"]) == ["install", "inspect", "baseline", "threads"]
    assert session(["threads"]) == []
    assert session(["threads", "precision"]) == ["install", "precision"]
    assert session(["threads"], again=True) == ["install", "inspect", "baseline", "threads"]


def test_a_baseline_that_left_nothing_is_run_again(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session(["threads"])
    monkeypatch.setattr(Fake, "remembers", False)
    assert session(["threads", "precision"]) == ["install", "baseline", "precision"]


def test_only_a_run_without_us_follows_a_failed_baseline(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "baseline_ok", False)
    assert session(["threads"]) == ["install", "inspect", "baseline", "bare"]
    assert session(["threads"]) == []
