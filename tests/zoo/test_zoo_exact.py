"""The outside check of EXACT changes must be able to find another training."""

from __future__ import annotations

import json
from typing import Any

import pytest
from zoo_exact import OTHER, REDRAWN, SAME, compared, read, summary

BARE = {
    "steps": 8,
    "stream": {"1": "a", "2": "b", "4": "c"},
    "first": [0.0, 0.0],
    "path": {"4": [3.0, 4.0], "8": [6.0, 8.0]},
}
OTHER_SAMPLES = {**BARE, "stream": {"1": "a", "2": "b", "4": "x"}}
OTHER_PARAMETERS = {**BARE, "path": {"4": [3.0, 4.0], "8": [6.0, 8.001]}}


def test_the_same_samples_and_parameters_are_the_same_training() -> None:
    assert compared(BARE, BARE, ["num_workers"], redrawn=False) == {
        "verdict": SAME,
        "samples": 4,
        "unlike": None,
        "steps": 8,
        "away": 0.0,
    }


@pytest.mark.parametrize("seen", [OTHER_SAMPLES, OTHER_PARAMETERS, {**BARE, "steps": 9}])
def test_another_training_is_silent_unless_the_space_reports_other_draws(seen: dict[str, Any]) -> None:
    assert compared(seen, BARE, ["num_workers"], redrawn=False)["verdict"] == OTHER
    assert compared(seen, BARE, ["num_workers"], redrawn=True)["verdict"] == REDRAWN


def test_only_knobs_that_sum_in_another_order_may_round() -> None:
    assert compared(OTHER_PARAMETERS, BARE, ["accumulation"], redrawn=False)["verdict"] == SAME
    assert compared(OTHER_SAMPLES, BARE, ["accumulation"], redrawn=False)["verdict"] == OTHER


def test_no_committed_result_is_a_silent_change() -> None:
    known = read()
    assert known
    assert [row for row in known.values() if row.get("verdict") == OTHER] == []
    assert summary(known).endswith("Silent changes: 0.")


def test_the_values_of_samples_are_compared_and_not_their_batches(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    from zoo_observer import Observer

    monkeypatch.setenv("ZOO_OBSERVED", str(tmp_path / "seen.json"))

    def stream(*sizes: int, last: float = 7.0) -> dict[str, str]:
        observer = Observer()
        observer.torch = torch
        rows = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, last])
        for batch in rows.split(list(sizes)):
            observer.note_content([batch, batch.long()], len(batch))
        return json.loads(json.dumps(observer.stream))

    assert stream(8) == stream(4, 4) == stream(3, 3, 2)
    assert stream(8, last=8.0)["4"] == stream(8)["4"]
    assert stream(8, last=8.0)["8"] != stream(8)["8"]


def test_the_width_of_padding_is_no_difference(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    from zoo_observer import Observer

    monkeypatch.setenv("ZOO_OBSERVED", str(tmp_path / "seen.json"))

    def stream(*rows: list[int]) -> dict[str, str]:
        observer = Observer()
        observer.torch = torch
        observer.note_content([torch.tensor(rows), torch.ones(len(rows))], len(rows))
        return observer.stream

    assert stream([1, 2, 0], [3, 0, 0]) == stream([1, 2, 0, 0], [3, 0, 0, 0])
    assert stream([1, 2, 0], [3, 0, 0]) != stream([1, 2, 0], [0, 3, 0])
    assert stream([1, 2], [3, 4])["1"] == stream([1, 2], [5, 6])["1"]
